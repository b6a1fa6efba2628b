"""Reasoning and Harmony's channels, however the text is cut; and which formats a template is given."""

from __future__ import annotations

import json

import formats_kit as kit
import pytest
import templates_kit
import tokens_kit
from hypothesis import given, settings
from hypothesis import strategies as st

from art.errors import ConfigError
from art.tokens.formats import REASONING_FORMATS, TOOL_FORMATS, choose_formats
from art.tokens.parsers.base import CallParser, PlainText
from art.tokens.parsers.harmony import MARKS, HarmonyParser
from art.tokens.parsers.hermes import Hermes
from art.tokens.parsers.reasoning import Marks, ReasoningParser

THINK = Marks("<think>", "</think>")
CALL = '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>'
LOOKED_UP = ("call", ("look_up", {}))


def thought(
    text: str, *, inside: bool = False, marks: Marks = THINK, places: list[int] | None = None
) -> kit.Shape:
    parser = ReasoningParser(marks, CallParser(Hermes(), kit.OFFERED), inside=inside)
    return kit.shape(kit.run(parser, list(text) if places is None else kit.cut(text, places)))


REASONING: list[tuple[bool, str, kit.Shape]] = [
    (False, "<think>Well.</think>Yes.", [("thought", "Well."), ("text", "Yes.")]),
    (
        False,
        "\n<think>\nWell,\n\nyes. \n</think>\n\nYes.\n",
        [("thought", "Well,\n\nyes."), ("text", "Yes.\n")],
    ),
    (True, "Well.\n</think>\n\nYes.", [("thought", "Well."), ("text", "Yes.")]),
    (True, "Well. The end is", [("thought", "Well. The end is")]),
    (True, "  \n</think>\nYes.", [("text", "Yes.")]),
    (True, "Well </thin", [("thought", "Well </thin")]),
    (True, "\n<think>\nWell.</think>Yes.", [("thought", "Well."), ("text", "Yes.")]),
    (True, "<thin", [("thought", "<thin")]),
    (True, "<think><think>a", [("thought", "<think>a")]),
    (False, "<think><think>a", [("thought", "<think>a")]),
    (True, "Write <think> first.</think>Yes.", [("thought", "Write <think> first."), ("text", "Yes.")]),
    (False, "</think>\n\nYes.", [("text", "Yes.")]),
    (False, "<think>\n\n</think>\n\nYes.", [("text", "Yes.")]),
    (False, "<think>a</think>\n<think> b</think>Yes.", [("thought", "a\n b"), ("text", "Yes.")]),
    (False, f"<think>a</think>\n{CALL}", [("thought", "a"), LOOKED_UP]),
    (False, f"<think>a {CALL}</think>b", [("thought", f"a {CALL}"), ("text", "b")]),
    (False, "Write <think> and </think> around it.", [("text", "Write <think> and </think> around it.")]),
    (False, "<thinner", [("text", "<thinner")]),
    (False, " plain ", [("text", " plain ")]),
    (False, "<think>unfinished", [("thought", "unfinished")]),
    (False, "<think>", []),
    (False, "", []),
]


@pytest.mark.parametrize(("inside", "text", "expected"), REASONING)
@settings(max_examples=5, deadline=None)
@given(places=st.lists(st.integers(0, 120), max_size=10))
def test_reasoning_is_told_apart_however_the_text_is_cut(
    inside: bool, text: str, expected: kit.Shape, places: list[int]
) -> None:
    assert thought(text, inside=inside, places=places) == expected
    assert thought(text, inside=inside) == expected


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(
        st.sampled_from(["<think>", "</think>", CALL, " ", "\n", "a", "<", "</thi", "é🙂"]), max_size=12
    ),
    inside=st.booleans(),
    places=st.lists(st.integers(0, 200), max_size=10),
)
def test_any_text_gives_the_same_thoughts_however_it_is_cut(
    words: list[str], inside: bool, places: list[int]
) -> None:
    text = "".join(words)
    assert thought(text, inside=inside, places=places) == thought(text, inside=inside, places=[])


def test_thoughts_leave_as_they_come() -> None:
    parser = ReasoningParser(THINK, PlainText())
    assert kit.shape(parser.feed("<think>\nI am")) == [("thought", "I am")]
    assert kit.shape(parser.feed(" thinking </th")) == [("thought", " thinking")]
    assert kit.shape(parser.feed("en")) == [("thought", " </then")]


@pytest.mark.parametrize("name", ["think", "mistral", "gemma"])
def test_the_other_marks_of_reasoning(name: str) -> None:
    marks = REASONING_FORMATS[name]
    assert marks is not None
    text = f"{marks.open}so be it\n{marks.close}Yes."
    assert thought(text, marks=marks) == [("thought", "so be it"), ("text", "Yes.")]


# -- harmony

THINKS = "<|channel|>analysis<|message|>Hm.<|end|>"
SAYS = "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
CALLS = '<|start|>assistant<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{"key": "a"}<|call|>'
CALLED = ("call", ("look_up", {"key": "a"}))
HARMONY: list[tuple[str, kit.Shape]] = [
    (THINKS + SAYS, [("thought", "Hm."), ("text", "Yes.")]),
    (SAYS.removeprefix("<|start|>assistant").removesuffix("<|return|>"), [("text", "Yes.")]),
    (THINKS + CALLS, [("thought", "Hm."), CALLED]),
    (THINKS + CALLS.removesuffix("<|call|>"), [("thought", "Hm."), CALLED]),
    (' to=functions.look_up<|channel|>commentary json<|message|>{"key": "a"}<|call|>', [CALLED]),
    ('<|channel|>analysis to=functions.look_up<|message|>{"key": "a"}<|call|>', [CALLED]),
    (f"{THINKS}<|start|>assistant{THINKS}{SAYS}", [("thought", "Hm.\nHm."), ("text", "Yes.")]),
    ("<|channel|>commentary<|message|>I look.<|end|>" + CALLS, [("text", "I look."), CALLED]),
    ("<|message|>Yes.", [("text", "Yes.")]),
    ("<|channel|>final<|message|>cut off <|e", [("text", "cut off <|e")]),
    ("<|channel|>final<|message|>a<|start|>assistant<|channel|>final<|message|>b", [("text", "a\nb")]),
]  # fmt: skip
LOOSE = [
    "Yes.",
    "<|channel|>analysis",
    "<|channel|>other<|message|>x",
    "<|channel|>" + "a" * 300 + "<|message|>x",
    CALLS.removeprefix("<|start|>assistant").replace("look_up", "unknown"),
    CALLS.removeprefix("<|start|>assistant").replace("functions.", "browser."),
    CALLS.removeprefix("<|start|>assistant").replace("}", ""),
    CALLS.removeprefix("<|start|>assistant").replace("{", "[{").replace("}", "}]"),
    "<|start|>user",
]


def harmony(pieces: list[str]) -> kit.Shape:
    return kit.shape(kit.run(HarmonyParser(kit.OFFERED), pieces))


@pytest.mark.parametrize(("text", "expected"), HARMONY)
@settings(max_examples=5, deadline=None)
@given(places=st.lists(st.integers(0, 250), max_size=12))
def test_channels_are_read_however_the_text_is_cut(text: str, expected: kit.Shape, places: list[int]) -> None:
    assert harmony(kit.cut(text, places)) == expected
    assert harmony(list(text)) == expected


@pytest.mark.parametrize("text", LOOSE)
def test_what_is_no_harmony_is_text_exactly_as_sampled(text: str) -> None:
    assert harmony(list(text)) == harmony([text]) == [("text", text)]


@settings(max_examples=150, deadline=None)
@given(
    words=st.lists(
        st.sampled_from(
            [
                *MARKS,
                "assistant",
                "analysis",
                "final",
                "commentary",
                " to=functions.look_up",
                "{}",
                "json",
                "a",
                " ",
                "\n",
            ]
        ),
        max_size=16,
    ),
    places=st.lists(st.integers(0, 300), max_size=10),
)
def test_any_text_gives_the_same_messages_however_it_is_cut(words: list[str], places: list[int]) -> None:
    text = "".join(words)
    assert harmony(kit.cut(text, places)) == harmony([text]) == harmony(list(text))


@settings(max_examples=25, deadline=None)
@given(
    arguments=st.dictionaries(
        st.text(max_size=5), st.text(max_size=8) | st.integers() | st.none(), max_size=3
    ),
    places=st.lists(st.integers(0, 200), max_size=10),
)
def test_a_written_harmony_call_is_read_back(arguments: dict[str, object], places: list[int]) -> None:
    text = CALLS.removeprefix("<|start|>assistant").replace('{"key": "a"}', json.dumps(arguments))
    assert harmony(kit.cut(text, places)) == [("call", ("look_up", arguments))]


def test_harmony_text_leaves_as_it_comes() -> None:
    parser = HarmonyParser(kit.OFFERED)
    assert parser.feed("<|channel|>analysis<|message|>") == []
    assert kit.shape(parser.feed("I am")) == [("thought", "I am")]
    assert kit.shape(parser.feed("<|end|><|start|>assistant<|channel|>final<|message|>Yes")) == [
        ("text", "Yes")
    ]


# -- the choice

CHOSEN = {
    "cohere": ("hermes", "none"),
    "deepseekv3": ("hermes", "think"),
    "gemma3": ("hermes", "none"),
    "gemma4_v5": ("gemma", "gemma"),
    "glm4moe": ("glm", "think"),
    "gptoss": ("harmony", "harmony"),
    "lfm2": ("pythonic", "none"),
    "lfm2_v2": ("pythonic", "none"),
    "muse_glimmer": ("json", "none"),
    "llama3": ("hermes", "none"),
    "llama3_1": ("llama3", "none"),
    "llama3_2": ("llama3", "none"),
    "nemotron_3_nano": ("qwen3_coder", "think"),
    "phi3": ("hermes", "none"),
    "qwen2_5": ("hermes", "none"),
    "qwen3": ("hermes", "think"),
    "qwen3_8": ("qwen3_coder", "think"),
    "smollm2": ("hermes", "none"),
    "mistral": ("mistral", "mistral"),
    "mistral_v3": ("mistral_json", "none"),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_formats_follow_from_the_template(name: str) -> None:
    formats = choose_formats(templates_kit.renderer(name))
    assert (formats.tools, formats.reasoning) == CHOSEN[name]


def test_the_formats_can_be_set() -> None:
    renderer = templates_kit.renderer("qwen3")
    formats = choose_formats(renderer, tool_parser="llama3", reasoning_parser="none")
    assert (formats.tools, formats.reasoning) == ("llama3", "none")
    for option in ("tool_parser", "reasoning_parser"):
        with pytest.raises(ConfigError, match="there is no") as caught:
            choose_formats(renderer, **{option: "nonsense"})
        names = [item.name for item in TOOL_FORMATS] if option == "tool_parser" else list(REASONING_FORMATS)
        assert all(name in caught.value.hint for name in names)
    with pytest.raises(ConfigError, match="do not go together"):
        choose_formats(renderer, tool_parser="harmony", reasoning_parser="think")


def test_the_parsers_see_the_special_tokens_that_they_need() -> None:
    formats = choose_formats(templates_kit.renderer("gptoss"))
    tokenizer = formats.tokenizer
    assert {tokenizer.decode([token], skip_special=False) for token in formats.kept_token_ids} >= {
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|call|>",
    }
    ids = tokenizer.encode(THINKS + CALLS)
    detokenizer = tokenizer.detokenizer(keep=formats.kept_token_ids)
    text = "".join(detokenizer.feed(token) for token in ids) + detokenizer.finish()
    assert harmony([text]) == [("thought", "Hm."), CALLED]


def test_a_prompt_that_opens_reasoning_begins_the_turn_inside_it() -> None:
    renderer = templates_kit.renderer("qwen3_8")
    formats = choose_formats(renderer)
    for options, expected in (
        ({}, [("thought", "Hm."), ("text", "Yes.")]),
        ({"enable_thinking": False}, [("text", "Hm.</think>Yes.")]),
    ):
        prompt = renderer.tokens([tokens_kit.user("well?")], options=options)
        parser = formats.parser(kit.TOOLS, prompt_token_ids=prompt)
        assert kit.shape(kit.run(parser, ["Hm.</think>Yes."])) == expected
    quoted = renderer.tokenizer.encode("the mark is <think> or so")
    assert not formats.opened(quoted)
    assert not choose_formats(templates_kit.renderer("llama3")).opened(quoted)


def test_reasoning_may_be_implied() -> None:
    renderer = templates_kit.renderer("qwen3")
    formats = choose_formats(renderer, reasoning_parser="think_implied")
    for options, expected in (
        ({}, [("thought", "Hm."), ("text", "Yes.")]),
        ({"enable_thinking": False}, [("text", "Hm.</think>Yes.")]),
    ):
        prompt = renderer.tokens([tokens_kit.user("well?")], options=options)
        parser = formats.parser(kit.TOOLS, prompt_token_ids=prompt)
        assert kit.shape(kit.run(parser, ["Hm.</think>Yes."])) == expected


def test_without_tools_marks_are_text_and_reasoning_is_not() -> None:
    renderer = templates_kit.renderer("qwen3")
    parser = choose_formats(renderer).parser((), prompt_token_ids=[])
    assert kit.shape(kit.run(parser, [f"<think>a</think>{CALL}"])) == [("thought", "a"), ("text", CALL)]
