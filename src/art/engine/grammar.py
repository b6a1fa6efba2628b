"""Grammars inside an engine: which token may come next. Torch-free; the masks are numpy arrays.

Axis: V vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

from art.engine.protocol import SampleRequest
from art.errors import ConfigError, InfraError, InvalidInput, boundary
from art.tokens.grammar import COMPILE_SECONDS, readable
from art.utils.deep_stack import call_deep

COMPILED = 64
"""Grammars kept compiled. The calls of a group share theirs; a copy costs microseconds, a compilation milliseconds."""


class Matcher:
    """Where one choice stands in its grammar."""

    def __init__(self, matcher: LLMatcher, *, vocab_size: int, stop_token_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._stops = stop_token_ids
        self._ended = False
        self._failure = ""

    def take(self, token: int) -> bool:
        """Go on with `token` if the grammar allows it. A stop token is allowed where the grammar may end.

        Also where the grammar itself has it, as the last mark of a call in some formats; it ends the choice there too.
        """
        if self._failure or not 0 <= token < self._vocab_size:
            return False
        if token in self._stops:
            # The library consumes none of them; only its mask knows the ones that are part of the grammar.
            self._ended = self._matcher.is_accepting() or bool(self.allowed()[token])
            return self._ended
        taken = bool(self._matcher.try_consume_tokens([token]) == 1)
        self._notice()
        return taken

    def allowed(self) -> NDArray[np.bool_]:
        """The tokens that `take` would take, [V]. All False once the grammar has failed."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed_V = np.unpackbits(bits, count=self._vocab_size, bitorder="little").astype(np.bool_)
        self._notice()
        if self._failure:
            allowed_V[:] = False
        elif not allowed_V.any():
            self._failure = "no token of the model can follow"
        return allowed_V

    @property
    def complete(self) -> bool:
        """The grammar has been followed to its end, and nothing can follow."""
        return not self._failure and (
            self._ended or (self._matcher.is_accepting() and self._matcher.is_stopped())
        )

    def error(self) -> InfraError | None:
        """Why the grammar cannot be followed any further, if it cannot."""
        if not self._failure:
            return None
        return InfraError(
            "the grammar of the answer came to a dead end",
            cause=self._failure,
            hint="ask for a simpler schema: fewer patterns, bounds and alternatives",
        )

    def _notice(self) -> None:
        if not self._failure and self._matcher.is_error():
            self._failure = readable(self._matcher.get_error()) or "the matcher failed"


class Grammars:
    """The grammars of one model's tokenizer, compiled once each."""

    def __init__(self, tokenizer: FastTokenizer, *, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compiled: OrderedDict[tuple[str, frozenset[int]], LLMatcher] = OrderedDict()
        # Cached per instance: a model has one set of stop tokens, rarely two.
        self._vocabulary = lru_cache(maxsize=4)(self._make_vocabulary)

    @classmethod
    def of_model(cls, folder: Path, *, vocab_size: int) -> Grammars | None:
        """None where the folder has no tokenizer. ConfigError where it cannot be read."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            return None
        with boundary(f"reading {path}", ConfigError):
            tokenizer = FastTokenizer.from_file(str(path))
        return cls(tokenizer, vocab_size=vocab_size)

    def matcher(self, request: SampleRequest) -> Matcher:
        """A fresh matcher of the request's grammar. InvalidInput where it is none."""
        stops = frozenset(request.stop_token_ids)
        key = (request.grammar, stops)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(request.grammar, stops)
            if len(self._compiled) > COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        return Matcher(compiled.deep_copy(), vocab_size=self._vocab_size, stop_token_ids=stops)

    def _compile(self, grammar: str, stops: frozenset[int]) -> LLMatcher:
        vocabulary = self._vocabulary(stops)
        compiled = call_deep(
            lambda: LLMatcher(vocabulary, grammar, log_level=0),
            seconds=COMPILE_SECONDS,
            what="compiling the grammar",
        )
        if compiled.is_error():
            raise InvalidInput(
                "the grammar cannot be compiled",
                cause=readable(compiled.get_error()),
                hint="ask for a simpler schema",
            )
        return compiled

    def _make_vocabulary(self, stops: frozenset[int]) -> LLTokenizer:
        """The tokenizer as the library wants it. Without stop tokens its own choice of one counts, and is never needed."""
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # A model may have rows for tokens that the tokenizer lacks, and now and then the other way round.
        size = max(self._vocab_size, self._tokenizer.get_vocab_size(with_added_tokens=True))
        return LLTokenizer(self._tokenizer.to_str(), n_vocab=size, eos_token=sorted(stops) or None)
