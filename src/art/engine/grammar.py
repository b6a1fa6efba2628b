"""Grammars inside an engine: which token may come next. Torch-free; the masks are numpy arrays.

Axis: V vocabulary.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

from art.engine.protocol import SampleRequest
from art.errors import InfraError, InvalidInput
from art.tokens.grammar_schema import COMPILE_SECONDS, readable
from art.utils.deep_stack import call_deep

logger = logging.getLogger(__name__)

COMPILED = 64
"""Grammars kept compiled. The calls of a group share theirs; a copy costs microseconds, a compilation milliseconds."""

_END = "<|end of grammar|>"


class Matcher:
    """Where one choice stands in its grammar."""

    def __init__(
        self, matcher: LLMatcher, *, vocab_size: int, end: int, stop_token_ids: frozenset[int]
    ) -> None:
        """`end` is the id that the library takes for its end token; a row of the model of that id has no meaning."""
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._end = end
        self._stops = stop_token_ids
        self._ended = False
        self._failure = ""

    def take(self, token: int) -> bool:
        """Go on with `token` if the grammar allows it.

        A stop token is allowed where the grammar may end, or where it ends with this very token, as the calls of
        some formats do.
        """
        if self._failure or self._ended or token == self._end or not 0 <= token < self._vocab_size:
            return False
        if token in self._stops:
            self._ended = self._matcher.is_accepting() or self._consume_last(token)
            return self._ended
        return self._consume(token)

    def allowed(self) -> NDArray[np.bool_]:
        """The tokens that `take` would take, [V]. All False once the grammar has failed."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed_V = np.unpackbits(bits, count=self._vocab_size, bitorder="little").astype(np.bool_)
        allowed_V[self._end : self._end + 1] = False
        accepting = self._matcher.is_accepting()
        for stop in self._stops:
            if accepting or not allowed_V[stop]:
                allowed_V[stop] = accepting
            elif self._consume_last(stop):
                self._matcher.rollback(1)
            else:
                allowed_V[stop] = False
        self._notice()
        if self._failure:
            allowed_V[:] = False
        elif not allowed_V.any():
            self._failure = "no token of the model can follow"
        return allowed_V

    @property
    def complete(self) -> bool:
        """The grammar has been followed to its end, and nothing can follow."""
        if self._failure:
            return False
        return self._ended or (self._matcher.is_accepting() and self._matcher.is_stopped())

    def error(self) -> InfraError | None:
        """Why the grammar cannot be followed any further, if it cannot."""
        if not self._failure:
            return None
        return InfraError(
            "the grammar of the answer came to a dead end",
            cause=self._failure,
            hint="ask for a simpler schema: fewer patterns, bounds and alternatives",
        )

    def _consume(self, token: int) -> bool:
        taken = bool(self._matcher.try_consume_tokens([token]) == 1)
        self._notice()
        return taken

    def _consume_last(self, token: int) -> bool:
        """Go on with `token` if the grammar may end behind it."""
        if not self._consume(token):
            return False
        if self._matcher.is_accepting():
            return True
        self._matcher.rollback(1)
        return False

    def _notice(self) -> None:
        if not self._failure and self._matcher.is_error():
            self._failure = readable(self._matcher.get_error()) or "the matcher failed"


class Grammars:
    """The grammars of one model's tokenizer, compiled once each."""

    def __init__(self, tokenizer: FastTokenizer, *, vocab_size: int) -> None:
        """InvalidInput for a tokenizer that the library does not know. Takes up to a second for a large vocabulary."""
        self._vocab_size = vocab_size
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        # The library's end token is one that the model does not have: which tokens end a choice is the request's matter.
        copy = FastTokenizer.from_str(tokenizer.to_str())
        copy.add_special_tokens([_END])
        end = copy.token_to_id(_END)
        assert end is not None, "it was added just now"
        self._end = end
        # A model may have rows for tokens that the tokenizer lacks, and now and then the other way round.
        size = max(vocab_size, copy.get_vocab_size(with_added_tokens=True), self._end + 1)
        try:
            self._vocabulary = LLTokenizer(copy.to_str(), n_vocab=size, eos_token=self._end)
        except ValueError as error:
            raise InvalidInput("this tokenizer cannot be used with grammars", cause=str(error)) from error

    def matcher(self, request: SampleRequest) -> Matcher:
        """A fresh matcher of the request's grammar. InvalidInput where it is none."""
        compiled = self._compiled.get(request.grammar)
        if compiled is None:
            compiled = self._compiled[request.grammar] = self._compile(request.grammar)
            if len(self._compiled) > COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(request.grammar)
        return Matcher(
            compiled.deep_copy(),
            vocab_size=self._vocab_size,
            end=self._end,
            stop_token_ids=frozenset(request.stop_token_ids),
        )

    def _compile(self, grammar: str) -> LLMatcher:
        compiled = call_deep(
            lambda: LLMatcher(self._vocabulary, grammar, log_level=0),
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


def grammars_of(tokenizer: FastTokenizer, *, vocab_size: int) -> tuple[Grammars | None, list[str]]:
    """(the tokenizer's grammars, notes); None with the reason where the library does not know such a tokenizer."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        return Grammars(tokenizer, vocab_size=vocab_size), []
    except InvalidInput as error:
        logger.warning("no grammar-constrained sampling: %s", error)
        return None, [f"response_format and forced tool calls are refused: {error.cause}"]
