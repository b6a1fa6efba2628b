"""Tokens to text and stop strings: the same result however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import tokens_kit as kit
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from art.errors import PromptTooLong
from art.testing.tiny import byte_tokenizer
from art.tokens.stops import StopMatcher
from art.tokens.tokenizer import most_bytes_per_token


def cut(text: str, places: list[int]) -> list[str]:
    """`text` in pieces."""
    at = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(at)]


# -- detokeniser


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40), kind=st.sampled_from(["bpe", "bytes"]))
def test_pieces_are_whole_characters_and_add_up(text: str, kind: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assume(not any(mark in text for mark in (kit.START, kit.END, kit.EOS)))  # their text is not text
    ours = kit.tokenizer(byte_tokenizer() if kind == "bytes" else None)
    detokenizer = ours.detokenizer()
    pieces = [detokenizer.feed(token) for token in ours.encode(text)]
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.finish() == text


@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(st.integers(0, 255), max_size=200))
def test_any_tokens_become_the_text_of_all_of_them(tokens: list[int]) -> None:
    ours = kit.tokenizer(byte_tokenizer())
    detokenizer = ours.detokenizer()
    pieces = [detokenizer.feed(token) for token in tokens]
    # What is held back past the bound is garbage already, so only whole garbage may differ.
    if len(tokens) <= 64:
        assert "".join(pieces) + detokenizer.finish() == ours.decode(tokens)


def test_garbage_is_not_held_back_for_ever() -> None:
    ours = kit.tokenizer(byte_tokenizer())
    (bad,) = [token for token in range(256) if ours.token_bytes(token) == b"\xe2"]
    detokenizer = ours.detokenizer()
    assert any(detokenizer.feed(bad) for _ in range(200))


def test_token_bytes_are_the_bytes_of_the_text() -> None:
    ours = kit.tokenizer()
    text = "naïve 你好 🙂\n\tx"
    assert b"".join(ours.token_bytes(token) for token in ours.encode(text)) == text.encode()
    end = ours.token_id(kit.END)
    assert end is not None
    assert ours.token_bytes(end) == b"<|im_end|>"
    assert ours.token_bytes(10**6) == b""


# -- stop strings


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["three", "two"], "one "),
        ("aab", ["ab"], "a"),
        ("aaab", ["aab", "ab"], "a"),
        ("no stop here", ["stop!"], "no stop here"),
        ("ends with st", ["stop"], "ends with st"),
        ("x", [], "x"),
    ],
)
@settings(max_examples=30, deadline=None)
@given(places=st.lists(st.integers(0, 100), max_size=8))
def test_text_ends_before_the_first_stop_string(
    text: str, stops: list[str], expected: str, places: list[int]
) -> None:
    matcher = StopMatcher(stops)
    out = "".join(matcher.feed(piece) for piece in cut(text, places))
    assert out + matcher.finish() == expected
    assert (matcher.matched is not None) == (expected != text)


# -- bounds


def _settings(fast: FastTokenizer) -> dict[str, Any]:
    return dict(json.loads(fast.to_str()))


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(max_size=60)
    | st.text(st.sampled_from(" \n가각ᄀ\u1161\u11a8e\u0301\u0304\u00e9ab"), max_size=60),
    kind=st.sampled_from(["bpe", "bytes"]),
    nfc=st.booleans(),
)
def test_no_token_stands_for_more_bytes_than_the_bound(text: str, kind: str, nfc: bool) -> None:
    text = text.encode("utf-8", "ignore").decode()
    fast = byte_tokenizer() if kind == "bytes" else kit.bpe()
    if nfc:
        fast.normalizer = normalizers.NFC()
    most = most_bytes_per_token(_settings(fast))
    assert most > 0
    tokens = fast.encode(text, add_special_tokens=False).ids
    assert len(text.encode()) <= most * len(tokens)


@pytest.mark.parametrize(
    "change",
    [
        lambda fast: setattr(fast, "normalizer", normalizers.NFKC()),
        lambda fast: setattr(
            fast, "normalizer", normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
        ),
        lambda fast: setattr(fast, "normalizer", normalizers.Replace(Regex(" +"), " ")),
        lambda fast: setattr(fast, "pre_tokenizer", pre_tokenizers.Whitespace()),
        lambda fast: setattr(
            fast,
            "pre_tokenizer",
            pre_tokenizers.Sequence(
                [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            ),
        ),
        lambda fast: fast.add_tokens([AddedToken("<mask>", lstrip=True)]),
    ],
)
def test_a_tokenizer_that_drops_text_has_no_bound(change: Callable[[FastTokenizer], object]) -> None:
    fast = byte_tokenizer()
    change(fast)
    assert most_bytes_per_token(_settings(fast)) == 0


def test_a_text_that_cannot_fit_is_not_encoded() -> None:
    ours = kit.tokenizer(byte_tokenizer())
    with pytest.raises(PromptTooLong, match=r"400000 bytes, which are at least \d+ tokens; 100 are left"):
        ours.encode("text" * 100_000, at_most=100)
    assert len(ours.encode("text", at_most=1)) == 4  # the exact number is worth having
