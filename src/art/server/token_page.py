"""The tokens of one choice for a page to draw: what each says, how likely it was, what was trained of it."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from art.store.trained_rows import TrainedChoice
from art.types.tokens import CallRecord, ChoiceRecord
from art.types.wire_views import TokenPage

Arrays = dict[str, np.ndarray[Any, Any]]
BytesOf = Callable[[int], bytes]
"""The bytes that a token stands for."""
BEFORE = 8
"""Prompt tokens that are read before the first one shown: a character has at most four bytes."""


def token_page(
    call: CallRecord,
    choice: ChoiceRecord,
    arrays: Arrays,
    *,
    bytes_of: BytesOf | None,
    start: int,
    limit: int,
    learns: bool,
    trained: TrainedChoice | None,
    trained_logprobs: np.ndarray[Any, Any] | None,
) -> TokenPage:
    """At most `limit` tokens from `start` on; prompt tokens have numbers below 0.

    `bytes_of` None: the tokenizer is gone, and ids stand for the text. `learns`: the choice was trained, or would be now.
    """
    prompt, ids = arrays["prompt_token_ids"], arrays[f"c{choice.index}.token_ids"]
    logprobs = arrays[f"c{choice.index}.logprobs"]
    begin = max(start, -len(prompt))
    end = min(begin + limit, len(ids))
    before, inside = slice(begin + len(prompt), min(end, 0) + len(prompt)), slice(max(begin, 0), max(end, 0))
    count = max(0, min(end, 0) - begin) if begin < 0 else 0
    trainable = arrays.get(f"c{choice.index}.trainable", np.ones(len(ids), dtype=np.bool_))
    nothing: list[None] = [None] * count
    theirs = None
    if trained_logprobs is not None and len(trained_logprobs) == len(ids):
        theirs = [*nothing, *_numbers(trained_logprobs[inside])]
    return TokenPage(
        call_id=call.call_id,
        choice=choice.index,
        start=begin,
        total=len(ids),
        ids=[*(prompt[before].tolist() if count else ()), *ids[inside].tolist()],
        text=[
            *(_prompt_texts(prompt, before, bytes_of) if count else ()),
            *_texts(ids[: inside.stop], bytes_of, whole=inside.stop == len(ids))[inside.start :],
        ],
        logprob=[*nothing, *_numbers(logprobs[inside])],
        trained_logprob=theirs,
        mask=[*([False] * count), *(trainable[inside].tolist() if learns else [False] * len(ids[inside]))],
        version=[*nothing, *_versions(choice, inside)],
        advantage=None if trained is None else trained.advantage,
    )


def _numbers(values: np.ndarray[Any, Any]) -> list[float | None]:
    """As JSON takes them."""
    rounded = np.round(values.astype(np.float64), 6)
    return [
        value if finite else None
        for value, finite in zip(rounded.tolist(), np.isfinite(rounded).tolist(), strict=True)
    ]


def _prompt_texts(prompt: np.ndarray[Any, Any], shown: slice, bytes_of: BytesOf | None) -> list[str]:
    first = max(0, shown.start - BEFORE)
    found = _texts(prompt[first : shown.stop], bytes_of, whole=shown.stop == len(prompt))
    return found[shown.start - first :]


def _texts(ids: np.ndarray[Any, Any], bytes_of: BytesOf | None, *, whole: bool) -> list[str]:
    """What each token adds to the text; of a character that takes several, the last one has all of it.

    `whole`: nothing comes behind, so that an unfinished character is one that never was.
    """
    if bytes_of is None:
        return [f"<{token}>" for token in ids.tolist()]
    reader = codecs.getincrementaldecoder("utf-8")("replace")
    found = [reader.decode(bytes_of(token)) for token in ids.tolist()]
    if whole and found:
        found[-1] += reader.decode(b"", final=True)
    return found


def _versions(choice: ChoiceRecord, inside: slice) -> list[int | None]:
    found: list[int | None] = [None] * (inside.stop - inside.start)
    for span in choice.spans:
        step = step_of(span.version)
        for at in range(max(span.start, inside.start), min(span.end, inside.stop)):
            found[at - inside.start] = step
    return found


def step_of(version: str) -> int | None:
    """The step of `project/name@step`."""
    step = version.rpartition("@")[2]
    return int(step) if step.isascii() and step.isdecimal() else None


def empty_page(call: CallRecord, choice: ChoiceRecord, *, start: int, withheld: str) -> TokenPage:
    """Of tokens that are not shown."""
    nothing: Sequence[Any] = []
    return TokenPage(
        call_id=call.call_id,
        choice=choice.index,
        start=start,
        total=choice.token_count,
        ids=list(nothing),
        text=list(nothing),
        logprob=list(nothing),
        mask=list(nothing),
        version=list(nothing),
        withheld=withheld,
    )
