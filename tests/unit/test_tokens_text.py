"""Tokens to text, stop strings and tool calls: the same result however the text is cut."""

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
from art.tokens.tools import ToolParser, assistant_message, call_text, parse_call
from art.types.messages import ToolCall

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


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


# -- tool calls


def parse(pieces: list[str]) -> list[str | ToolCall]:
    parser = ToolParser(["get_weather", "look_up"])
    out = [item for piece in pieces for item in parser.feed(piece)]
    return out + parser.finish()


def shape(items: list[str | ToolCall]) -> tuple[str, list[tuple[str, object]]]:
    text = "".join(item for item in items if isinstance(item, str))
    calls = [item.function for item in items if isinstance(item, ToolCall)]
    return text, [(call.name, json.loads(call.arguments)) for call in calls]


PARIS = ("get_weather", {"city": "Paris"})
CASES: list[tuple[str, str, list[tuple[str, object]]]] = [
    (CALL, "", [PARIS]),
    (f"Let me see.\n{CALL}", "Let me see.\n", [PARIS]),
    (f"\n {CALL}\n{CALL}\n", "", [PARIS, PARIS]),
    (f"a {CALL} b", "a  b", [PARIS]),
    ('<tool_call>\n{"name": "x", "arguments": "{\\"a\\": 1}"}\n</tool_call>', "", [("x", {"a": 1})]),
    ('<tool_call>{"name": "x", "parameters": {"a": 1}}</tool_call>', "", [("x", {"a": 1})]),
    ('<tool_call>{"name": "x"}</tool_call>', "", [("x", {})]),
    (CALL.removesuffix("</tool_call>"), "", [PARIS]),
    ('<tool_call>{"name": "x", "arguments"', '<tool_call>{"name": "x", "arguments"', []),
    ("<tool_call>{oops}</tool_call>", "<tool_call>{oops}</tool_call>", []),
    (f"<tool_call>[1]</tool_call>{CALL}", "<tool_call>[1]</tool_call>", [PARIS]),
    ('{"name": "get_weather", "arguments": {"city": "Paris"}}', "", [PARIS]),
    (' [{"name": "get_weather", "arguments": {"city": "Paris"}}] ', "", [PARIS]),
    ('{"name": "unknown", "arguments": {}}', '{"name": "unknown", "arguments": {}}', []),
    ('{"weather": "sunny"}', '{"weather": "sunny"}', []),
    ("{" + CALL, "{", [PARIS]),
    ("[" * 20_000, "[" * 20_000, []),
    ("just <tool text", "just <tool text", []),
    ("  \n ", "  \n ", []),
    ("", "", []),
]


@pytest.mark.parametrize(("text", "said", "calls"), CASES)
@settings(max_examples=25, deadline=None)
@given(places=st.lists(st.integers(0, 120), max_size=12))
def test_calls_are_found_however_the_text_is_cut(
    text: str, said: str, calls: list[tuple[str, object]], places: list[int]
) -> None:
    assert shape(parse(cut(text, places))) == (said, calls)


def test_every_call_gets_an_id_of_its_own() -> None:
    calls = [item for item in parse([CALL + CALL]) if isinstance(item, ToolCall)]
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("call_") for call in calls)


def test_what_is_written_for_a_call_is_read_as_that_call() -> None:
    arguments = {"city": 'Zoë\'s "<Söhne>"', "n": [1, None]}
    assert shape(parse([call_text("look_up", arguments)])) == ("", [("look_up", arguments)])


def test_the_message_of_a_completion() -> None:
    assert assistant_message([]).content == ""
    assert assistant_message(parse([CALL])).content is None
    assert assistant_message(parse([f"a{CALL}"])).content == "a"


def test_half_characters_in_a_call_leave_it_the_text_it_is() -> None:
    for body in (
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "f", "arguments": "{\\"a\\": \\"\\\\ud800\\"}"}',
        '{"name": "f\\ud800", "arguments": {}}',
    ):
        assert parse_call(body) is None
        parser = ToolParser(["f", "f\ud800"])
        assert parser.feed(body) + parser.finish() == [body]


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
