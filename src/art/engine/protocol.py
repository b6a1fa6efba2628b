"""What an engine is: prompt tokens + sampling parameters + adapter version -> stream of tokens.

Torch-free: the gateway imports this module. The gateway holds an `Engine` (server/engines.py) that speaks
`art.ipc` to a worker process (`python -m art.engine.worker`); the worker runs the engine proper.

Methods over the channel, each with the params and result of the dataclass of its name below:
    generate        SampleRequest -> events Sampled..., result {}     (cancel: {"id", "cancel": true})
    load_adapter    AdapterRef    -> AdapterCheck
    unload_adapter  {"version"}   -> {}
    probe           {"version", "token_ids"} -> {"logprobs": [...]}   log p of token_ids[1:], each given its past
The worker's ready message carries EngineCapabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

BASE_VERSION = ""
"""The adapter version that means the base model itself."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One choice to sample. `n` choices are n requests; the prefix cache shares their prompt."""

    prompt_token_ids: list[int]
    version: str = BASE_VERSION
    """A loaded adapter, or BASE_VERSION. Never resolved again: it does not change inside a request."""
    cache_salt: str = ""
    """Part of every prefix-cache key beside the version; requests of different salts share nothing."""
    max_tokens: int = 16
    temperature: float = 1.0
    """0 is greedy; log-probabilities are then those at temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    """Decides every draw together with the position; the same request gives the same tokens whatever
    else is in the batch, up to the arithmetic of the batch shape."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling one of them ends the choice; it is included in the tokens."""
    top_logprobs: int = 0
    grammar: str = ""
    """What the completion must be: a grammar of the llguidance package ("" is none). A token is drawn from the
    model's own distribution first; only where the grammar refuses it, another is drawn among those it allows."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The next tokens of a choice. The last one has a finish_reason and may carry no token."""

    token_ids: list[int]
    logprobs: list[float]
    """log-softmax(logits / temperature) of the sampled token, before truncation."""
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    """Per token, the (token id, log-probability) pairs asked for, best first."""
    forced: list[bool] = field(default_factory=list)
    """Per token, True where the grammar refused the model's own draw; empty when none was refused."""
    finish_reason: str | None = None
    """None, "stop", "length" or "cancelled"."""
    cached_tokens: int = 0
    """On the first event: prompt tokens taken from the prefix cache."""


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """A published checkpoint to load."""

    version: str
    path: str
    """Absolute path of the checkpoint folder: an adapter in PEFT's files, or a whole model in transformers'."""
    probe_token_ids: list[int] = field(default_factory=list)
    """Tokens whose log-probabilities the trainer wrote into the manifest; the self-check repeats them."""
    sha256: str = ""
    """Of the file with the weights: the same version with other content is another adapter."""


@dataclass(frozen=True, slots=True)
class AdapterCheck:
    """What loading an adapter showed. The gateway compares it with the manifest."""

    version: str
    matched: int
    """Adapter tensors that found their place in the model."""
    unmatched: list[str] = field(default_factory=list)
    """Names that did not. Any entry is an error: the adapter would silently be (partly) the base model."""
    probe_logprobs: list[float] = field(default_factory=list)
    base_probe_logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What this engine can do, as data."""

    kind: str
    """"torch", "scripted", ..."""
    base_model: str
    vocab_size: int
    context_length: int
    """Prompt and completion together."""
    max_batch: int
    """Choices that are decoded at once; more wait in the engine's queue."""
    dtype: str
    adapter_mode: str = "merged"
    max_adapters: int = 4
    device: str = "cpu"
    grammar: bool = False
    """It follows `SampleRequest.grammar`."""
    deterministic: bool = False
    """Tokens and log-probabilities of a request depend on it and the weights alone, bit by bit."""
    notes: list[str] = field(default_factory=list)
    """Automatic choices with their reasons, printed once."""


class Engine(Protocol):
    """The gateway's view. All waits have deadlines; a dead worker raises WorkerDied in every pending call."""

    @property
    def capabilities(self) -> EngineCapabilities: ...

    async def generate(self, request: SampleRequest, on_event: Callable[[Sampled], None]) -> None:
        """Sample one choice to its end; its tokens go to `on_event` as they come.

        Cancelling cancels it in the engine, and so does an exception of `on_event`, which is raised here.
        """
        ...

    async def load_adapter(self, ref: AdapterRef) -> AdapterCheck: ...

    async def unload_adapter(self, version: str) -> None: ...

    async def probe(self, version: str, token_ids: list[int]) -> list[float]: ...

    def stats(self) -> dict[str, Any]:
        """The last heartbeat's figures: running, waiting, tokens_sampled, cache_hits, loaded versions."""
        ...
