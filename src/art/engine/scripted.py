"""An engine that answers from a script: real token ids, no model and no torch. For tests.

The script is JSON:

    {"rules": [{"match": "capital of (\\w+)", "replies": ["Paris", "Lyon"], "version": ".*@3"}],
     "default": "I do not know.", "token_delay_ms": 5}

The first rule whose `match` is found in the last `tail_chars` characters of the decoded prompt (and whose
`version`, when given, matches the whole version name) answers; the request's seed chooses among its
replies. Everything is a function of request and script, so a run repeats itself. A request with a grammar fails
where the reply does not follow it.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import OrderedDict, deque
from dataclasses import asdict, dataclass, field
from os import _exit as exit_now
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer

from art.engine.grammar import Grammars, Matcher, grammars_of
from art.engine.protocol import (
    BASE_VERSION,
    AdapterCheck,
    AdapterRef,
    EngineCapabilities,
    Sampled,
    SampleRequest,
)
from art.engine.step import StepEvent
from art.errors import ArtError, ConfigError, InvalidInput, NotFound, from_dict

DEFAULT_CONTEXT = 4096
"""Tokens; used when neither the command line nor the model's config says."""
REMEMBERED_SEQUENCES = 256
"""Sequences that count as cached when `cached_tokens` is reported."""


class Rule(BaseModel):
    """One line of the script."""

    model_config = ConfigDict(extra="forbid")

    match: str
    """Regular expression, searched in the prompt's tail (flags: DOTALL)."""
    replies: list[str] = Field(default_factory=list)
    """The seed chooses one; an empty list with an `error` fails the request."""
    version: str | None = None
    """Regular expression for the whole version name; None is any, "" is the base model."""
    expand: bool = False
    """Replace \\1, \\2 ... in the reply by the match's groups."""
    error: dict[str, str] | None = None
    """An ArtError's wire form: the request fails with it."""


class Script(BaseModel):
    """What the engine says and how it misbehaves."""

    model_config = ConfigDict(extra="forbid")

    rules: list[Rule] = Field(default_factory=list)
    default: str = "ok"
    tail_chars: int = Field(4000, ge=1)
    token_delay_ms: float = Field(0.0, ge=0)
    """Pause of every step: each running request gets one token in it."""
    load_delay_ms: float = Field(0.0, ge=0)
    """Pause of every load_adapter."""
    fail_after: int | None = Field(None, ge=0)
    """The step after this many sampled tokens raises, which ends the process as a real failure would."""
    die_after: int | None = Field(None, ge=0)
    """The process ends without a word after this many sampled tokens."""
    wrong_probes: list[str] = Field(default_factory=list)
    """Versions whose self-check answers as the base model would."""


@dataclass(slots=True)
class _Choice:
    """A running request and the tokens it will be given."""

    request: SampleRequest
    planned: list[int]
    cut: bool
    """The script had more to say than max_tokens or the context allow."""
    cached_tokens: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class ScriptedEngine:
    """A StepEngine without a model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        capabilities: EngineCapabilities,
        script: Script,
        *,
        log: IO[str] | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.capabilities = capabilities
        self.stats: dict[str, Any] = {}
        self._tokenizer = tokenizer
        self._script = script
        self._log = log
        self._grammars = grammars
        self._waiting: OrderedDict[int, _Choice] = OrderedDict()
        self._running: dict[int, _Choice] = {}
        self._cancelled: set[int] = set()
        self._adapters: dict[str, AdapterRef] = {}
        self._sequences: deque[tuple[tuple[str, str], list[int]]] = deque(maxlen=REMEMBERED_SEQUENCES)
        self._tokens_sampled = 0
        self._cache_hits = 0
        self._refresh_stats()

    @classmethod
    def load(
        cls,
        base_model: str,
        *,
        script: str | None = None,
        log: str | None = None,
        max_batch: int = 64,
        context: int = 0,
        max_adapters: int = 4,
    ) -> ScriptedEngine:
        """The engine of a model folder (only tokenizer.json is needed; config.json bounds the context)."""
        tokenizer_path = Path(base_model, "tokenizer.json")
        if not tokenizer_path.is_file():
            raise ConfigError(
                f"{tokenizer_path} does not exist", hint="give a model's folder as --base-model"
            )
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
        config = (
            _read_json(Path(base_model, "config.json")) if Path(base_model, "config.json").is_file() else {}
        )
        vocab_size = int(config.get("vocab_size", tokenizer.get_vocab_size()))
        grammars, notes = grammars_of(tokenizer, vocab_size=vocab_size)
        capabilities = EngineCapabilities(
            kind="scripted",
            base_model=base_model,
            vocab_size=vocab_size,
            context_length=context or int(config.get("max_position_embeddings", DEFAULT_CONTEXT)),
            max_batch=max_batch,
            dtype="none",
            adapter_mode="scripted",
            max_adapters=max_adapters,
            grammar=grammars is not None,
            notes=["scripted engine: answers come from rules, not from a model", *notes],
        )
        # Line buffered: a test reads the log while the engine runs.
        sink = open(log, "a", buffering=1) if log else None  # noqa: SIM115 - lives as long as the engine
        return cls(tokenizer, capabilities, read_script(script), log=sink, grammars=grammars)

    def submit(self, key: int, request: SampleRequest) -> None:
        self._require(request.version)
        self._waiting[key] = _Choice(request, *self._plan(request), self._common_prefix(request))
        self._refresh_stats()

    def cancel(self, key: int) -> None:
        if key in self._waiting or key in self._running:
            self._cancelled.add(key)

    def step(self) -> list[StepEvent] | None:
        events: list[StepEvent] = [self._cancel_now(key) for key in sorted(self._cancelled)]
        self._cancelled.clear()
        while self._waiting and len(self._running) < self.capabilities.max_batch:
            key, choice = self._waiting.popitem(last=False)
            self._running[key] = choice
        if self._running and self._script.token_delay_ms:
            time.sleep(self._script.token_delay_ms / 1000)
        for key, choice in list(self._running.items()):
            events.append((key, self._advance(key, choice)))
        self._refresh_stats()
        return events or None

    def load_adapter(self, ref: AdapterRef) -> AdapterCheck:
        weights = Path(ref.path, "adapter_model.safetensors")
        if not weights.is_file():
            raise NotFound(f"{weights} does not exist", hint="give the folder of a published checkpoint")
        time.sleep(self._script.load_delay_ms / 1000)
        if ref.version not in self._adapters and len(self._adapters) >= self.capabilities.max_adapters:
            self._evict()
        self._adapters[ref.version] = ref
        self._refresh_stats()
        return AdapterCheck(
            version=ref.version,
            matched=len(_tensor_names(weights)),
            probe_logprobs=self._probe_logprobs(ref),
            base_probe_logprobs=self.probe(BASE_VERSION, ref.probe_token_ids),
        )

    def unload_adapter(self, version: str) -> None:
        self._adapters.pop(version, None)
        self._refresh_stats()

    def probe(self, version: str, token_ids: list[int]) -> list[float]:
        self._require(version)
        return [_logprob(version, position, token) for position, token in enumerate(token_ids)][1:]

    def _probe_logprobs(self, ref: AdapterRef) -> list[float]:
        if ref.version in self._script.wrong_probes:
            return self.probe(BASE_VERSION, ref.probe_token_ids)
        manifest = Path(ref.path, "manifest.json")
        recorded = _read_json(manifest).get("probe_logprobs") if manifest.is_file() else None
        # A script has no weights of its own to check; it repeats what the trainer wrote.
        return list(recorded) if recorded else self.probe(ref.version, ref.probe_token_ids)

    def _require(self, version: str) -> None:
        if version != BASE_VERSION and version not in self._adapters:
            raise NotFound(f"adapter {version!r} is not loaded", hint="load_adapter comes first")

    def _evict(self) -> None:
        busy = {choice.request.version for choice in (*self._running.values(), *self._waiting.values())}
        for version in self._adapters:
            if version not in busy:
                del self._adapters[version]
                return
        raise ArtError("every loaded adapter has running requests", hint="raise --max-adapters")

    def _plan(self, request: SampleRequest) -> tuple[list[int], bool]:
        """The completion's tokens, stop token included, and whether max_tokens or the context cut it."""
        tail = self._tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)[
            -self._script.tail_chars :
        ]
        reply = self._reply(tail, request)
        token_ids: list[int] = self._tokenizer.encode(reply, add_special_tokens=False).ids
        if request.stop_token_ids:
            token_ids = [*token_ids, request.stop_token_ids[0]]
        if request.grammar and self._grammars is not None:
            token_ids = self._follow(self._grammars.matcher(request), token_ids, reply)
        room = self.capabilities.context_length - len(request.prompt_token_ids)
        allowed = min(request.max_tokens, room)
        return token_ids[:allowed], len(token_ids) > allowed

    def _follow(self, matcher: Matcher, token_ids: list[int], reply: str) -> list[int]:
        """The tokens up to where the grammar is complete. InvalidInput where it refuses one: a script cannot be forced."""
        for at, token in enumerate(token_ids):
            if not matcher.take(token):
                before = self._tokenizer.decode(token_ids[:at], skip_special_tokens=False)
                raise InvalidInput(
                    "the script's reply does not follow the request's grammar",
                    cause=f"{reply[:80]!r} is refused behind {before[-80:]!r}",
                    hint="give the script a reply of the form that is asked for",
                )
            if matcher.complete:
                return token_ids[: at + 1]
        return token_ids

    def _reply(self, tail: str, request: SampleRequest) -> str:
        for rule in self._script.rules:
            found = re.search(rule.match, tail, re.DOTALL)
            if found is None or (
                rule.version is not None and not re.fullmatch(rule.version, request.version)
            ):
                continue
            if rule.error is not None:
                raise from_dict(rule.error)
            reply = rule.replies[_digest("reply", request.seed) % len(rule.replies)]
            return found.expand(reply) if rule.expand else reply
        return self._script.default

    def _common_prefix(self, request: SampleRequest) -> int:
        space, prompt = (request.version, request.cache_salt), request.prompt_token_ids
        best = 0
        for other_space, tokens in self._sequences:
            if other_space == space:
                length = next(
                    (i for i, (a, b) in enumerate(zip(prompt, tokens, strict=False)) if a != b), None
                )
                best = max(best, min(len(prompt), len(tokens)) if length is None else length)
        # The last prompt token is always computed: its logits are needed.
        best = min(best, len(prompt) - 1)
        self._cache_hits += best > 0
        return best

    def _advance(self, key: int, choice: _Choice) -> Sampled:
        self._misbehave()
        request, position = choice.request, len(choice.token_ids)
        if not choice.planned:
            return self._finish(key, choice, Sampled([], [], finish_reason="stop"))
        token = choice.planned[position]
        logprob = _logprob(
            f"{request.version}/{request.seed}", len(request.prompt_token_ids) + position, token
        )
        choice.token_ids.append(token)
        choice.logprobs.append(logprob)
        self._tokens_sampled += 1
        last = position + 1 == len(choice.planned)
        event = Sampled(
            [token],
            [logprob],
            top_logprobs=[_alternatives(token, logprob, request.top_logprobs, self.capabilities.vocab_size)]
            if request.top_logprobs
            else [],
            finish_reason=("length" if choice.cut else "stop") if last else None,
            cached_tokens=choice.cached_tokens if position == 0 else 0,
        )
        return event if event.finish_reason is None else self._finish(key, choice, event)

    def _finish(self, key: int, choice: _Choice, event: Sampled) -> Sampled:
        self._running.pop(key, None)
        self._waiting.pop(key, None)
        request = choice.request
        self._sequences.append(
            ((request.version, request.cache_salt), request.prompt_token_ids + choice.token_ids)
        )
        if self._log is not None:
            record = asdict(request) | {
                "token_ids": choice.token_ids,
                "logprobs": choice.logprobs,
                "finish_reason": event.finish_reason,
            }
            self._log.write(json.dumps(record) + "\n")
        return event

    def _cancel_now(self, key: int) -> StepEvent:
        choice = self._running.get(key) or self._waiting[key]
        return key, self._finish(key, choice, Sampled([], [], finish_reason="cancelled"))

    def _misbehave(self) -> None:
        if self._script.die_after is not None and self._tokens_sampled >= self._script.die_after:
            exit_now(9)
        if self._script.fail_after is not None and self._tokens_sampled >= self._script.fail_after:
            raise RuntimeError("the script asked for a failure")

    def _refresh_stats(self) -> None:
        self.stats = {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "tokens_sampled": self._tokens_sampled,
            "cache_hits": self._cache_hits,
            "versions": list(self._adapters),
        }


def read_script(path: str | None) -> Script:
    """The script in a file, or the empty one. ConfigError names what is wrong with it."""
    if path is None:
        return Script()
    try:
        script = Script.model_validate(_read_json(Path(path)))
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{path} is not a script", cause=str(error)) from error
    for rule in script.rules:
        if not rule.replies and rule.error is None:
            raise ConfigError(f"rule {rule.match!r} has neither replies nor an error")
        for pattern in (rule.match, rule.version or ""):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"rule {rule.match!r} has a bad pattern", cause=f"{pattern!r}: {error}"
                ) from error
    return script


def _digest(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def _logprob(space: str, position: int, token: int) -> float:
    """A plausible log-probability: in (-2, 0], the same for the same arguments."""
    return -round(2 * (_digest(space, position, token) % 10_000) / 10_000, 4)


def _alternatives(token: int, logprob: float, count: int, vocab_size: int) -> list[tuple[int, float]]:
    """`count` pairs, best first: the sampled token and its neighbours, each less likely."""
    return [((token + i) % vocab_size, logprob - 2.5 * i) for i in range(count)]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON", cause=str(error)) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return value


def _tensor_names(path: Path) -> list[str]:
    """The names in a safetensors file: an 8-byte little-endian length and a JSON header."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError as error:
        raise InvalidInput(f"{path} is damaged", cause=str(error)) from error
    return [name for name in header if name != "__metadata__"]
