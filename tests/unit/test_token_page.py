"""Tokens of a choice, a page at a time: every page says what one long page says, characters that are split included."""

from __future__ import annotations

import numpy as np
import pytest

from art.server.token_page import token_page
from art.store.trained_rows import TrainedChoice
from art.types.tokens import CallRecord, ChoiceRecord, VersionSpan
from art.types.wire_views import TokenPage

PROMPT, SAID = "Grüße? 🙂".encode(), "é 🙂🙂!".encode() + b"\xf0\x9f"
CALL = CallRecord(call_id="c", rollout_id="r", prompt_token_count=len(PROMPT))
CHOICE = ChoiceRecord(
    index=1,
    finish_reason="length",
    token_count=len(SAID),
    spans=[
        VersionSpan(start=0, end=3, version="p/m@4"),
        VersionSpan(start=3, end=len(SAID), version="p/m@5"),
    ],
)
ARRAYS = {
    "prompt_token_ids": np.frombuffer(PROMPT, dtype=np.uint8).astype(np.int32),
    "c1.token_ids": np.frombuffer(SAID, dtype=np.uint8).astype(np.int32),
    "c1.logprobs": -np.arange(len(SAID), dtype=np.float32),
    "c1.trainable": np.arange(len(SAID)) != 2,
}
TRAINED = TrainedChoice("c", 1, step=6, advantage=0.5, blob=None)


def page(start: int, limit: int, *, learns: bool = True, known: bool = True) -> TokenPage:
    theirs = np.full(len(SAID), np.nan, dtype=np.float32)
    theirs[0] = -0.125
    return token_page(
        CALL,
        CHOICE,
        ARRAYS,
        bytes_of=(lambda token: bytes([token])) if known else None,
        start=start,
        limit=limit,
        learns=learns,
        trained=TRAINED,
        trained_logprobs=theirs,
    )


def test_one_page_with_everything() -> None:
    whole = page(-len(PROMPT), 1000)
    count, total = len(PROMPT), len(PROMPT) + len(SAID)
    assert (whole.start, whole.total, whole.call_id, whole.choice) == (-count, len(SAID), "c", 1)
    for values in (
        whole.ids,
        whole.text,
        whole.logprob,
        whole.mask,
        whole.version,
        whole.trained_logprob or [],
    ):
        assert len(values) == total
    assert bytes(whole.ids) == PROMPT + SAID
    assert "".join(whole.text) == (PROMPT + SAID).decode(errors="replace")
    assert whole.text[count : count + 2] == ["", "é"]  # with its last token
    assert whole.logprob[:count] == [None] * count
    assert whole.logprob[count + 1] == -1.0
    assert whole.trained_logprob is not None
    assert whole.trained_logprob[count : count + 2] == [-0.125, None]
    assert whole.mask == [False] * count + [index != 2 for index in range(len(SAID))]
    assert whole.version == [None] * count + [4] * 3 + [5] * (len(SAID) - 3)
    assert whole.advantage == 0.5
    assert not any(page(0, 10, learns=False).mask)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pages_put_together_are_the_whole(size: int) -> None:
    whole = page(-len(PROMPT), 1000)
    parts = [page(start, size) for start in range(-len(PROMPT), len(SAID), size)]
    for name in ("ids", "text", "logprob", "mask", "version", "trained_logprob"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(whole, name), name


def test_pages_beyond_the_ends() -> None:
    assert page(-1000, 3).start == -len(PROMPT)
    assert page(len(SAID) + 5, 10).ids == []
    assert page(len(SAID), 10).text == []
    assert page(-2, 2).ids == list(PROMPT[-2:])


def test_without_its_tokenizer_ids_stand_for_the_text() -> None:
    assert page(0, 2, known=False).text == [f"<{SAID[0]}>", f"<{SAID[1]}>"]
