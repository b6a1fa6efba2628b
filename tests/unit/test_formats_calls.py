"""Tool calls in every format: found however the text is cut, and text exactly as sampled where they are none."""

from __future__ import annotations

import json
from typing import Any

import formats_kit as kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.tokens.parsers.base import CallParser, Form, Offered
from art.tokens.parsers.deepseek import DeepSeek
from art.tokens.parsers.gemma import Gemma
from art.tokens.parsers.glm import Glm
from art.tokens.parsers.harmony import HarmonyParser
from art.tokens.parsers.hermes import Hermes
from art.tokens.parsers.llama3 import Llama3
from art.tokens.parsers.mistral import Mistral
from art.tokens.parsers.plain_json import PlainJson
from art.tokens.parsers.pythonic import Pythonic
from art.tokens.parsers.qwen3_coder import Qwen3Coder
from art.tokens.tools import assistant_message, call_text
from art.types.messages import ToolCall

FUNCTION_GEMMA = Gemma("<start_function_call>", "<end_function_call>", "<escape>")
FORMS: dict[str, Form] = {
    "hermes": Hermes(),
    "json": PlainJson(),
    "llama3": Llama3(),
    "mistral": Mistral(),
    "qwen3_coder": Qwen3Coder(),
    "glm": Glm(),
    "deepseek": DeepSeek(),
    "gemma": Gemma(),
    "functiongemma": FUNCTION_GEMMA,
    "pythonic": Pythonic(),
}
PARIS = ("call", ("get_weather", {"city": "Paris"}))
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TAGGED = f"<tool_call>{CALL}</tool_call>"
CODER = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
)
GLM = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
GEMMA = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
FUNCTION = "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>"
D_OPEN, D_CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
D_CALL = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜>'
D_SHORT = '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
PARAMETERS = CALL.replace("arguments", "parameters")

PYTHON = "<|tool_call_start|>[get_weather(city='Paris')]<|tool_call_end|>"

FOUND: list[tuple[str, str, kit.Shape]] = [
    ("hermes", TAGGED, [PARIS]),
    ("hermes", f"Let me see.\n{TAGGED}", [("text", "Let me see.\n"), PARIS]),
    ("hermes", f"\n {TAGGED}\n{TAGGED}\n", [PARIS, PARIS]),
    ("hermes", f"a {TAGGED} b", [("text", "a "), PARIS, ("text", " b")]),
    ("hermes", TAGGED.replace("arguments", "parameters"), [PARIS]),
    ("hermes", '<tool_call>{"name": "look_up"}</tool_call>', [("call", ("look_up", {}))]),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": "{\\"a\\": 1}"}</tool_call>', [("call", ("look_up", {"a": 1}))]),
    ("hermes", TAGGED.removesuffix("</tool_call>"), [PARIS]),
    ("hermes", f"<tool_call>[1]</tool_call>{TAGGED}", [("text", "<tool_call>[1]</tool_call>"), PARIS]),
    ("hermes", f"<tool_call>{TAGGED}", [("text", "<tool_call>"), PARIS]),
    ("hermes", CALL, [PARIS]),
    ("hermes", f" [{CALL}] ", [PARIS]),
    ("hermes", "{" + TAGGED, [("text", "{"), PARIS]),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": {"key": "</tool_call>"}}</tool_call>.', [("call", ("look_up", {"key": "</tool_call>"})), ("text", ".")]),
    ("json", CALL, [PARIS]),
    ("json", f"[{CALL}, {CALL}]\n", [PARIS, PARIS]),
    ("json", '{"type": "function", "function": {"name": "look_up", "arguments": {}}}', [("call", ("look_up", {}))]),
    ("llama3", PARAMETERS, [PARIS]),
    ("llama3", f"<|python_tag|>{PARAMETERS}", [PARIS]),
    ("llama3", f"{PARAMETERS}; {PARAMETERS};", [PARIS, PARIS]),
    ("llama3", f"I will.<|python_tag|>{CALL}", [("text", "I will."), PARIS]),
    ("llama3", '{"type": "function", "function": "look_up", "parameters": {"key": "};{"}}', [("call", ("look_up", {"key": "};{"}))]),
    ("mistral", f"[TOOL_CALLS][{CALL}]", [PARIS]),
    ("mistral", f"ok [TOOL_CALLS] [{CALL}, {CALL}]", [("text", "ok "), PARIS, PARIS]),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', [PARIS]),
    ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Paris"}[TOOL_CALLS]look_up[ARGS]{}', [PARIS, ("call", ("look_up", {}))]),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}', [PARIS]),
    # As mistral-common 1.13.1 writes it (tekken, version 3).
    (
        "mistral",
        '[TOOL_CALLS][{"name": "look_up", "arguments": {"key": "a"}, "id": "abcdefghi"}]',
        [("call", ("look_up", {"key": "a"}))],
    ),
    ("qwen3_coder", CODER, [PARIS]),
    ("qwen3_coder", f"I look.\n\n{CODER}\n{CODER}", [("text", "I look.\n\n"), PARIS, PARIS]),
    ("qwen3_coder", CODER.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"), [PARIS]),
    ("qwen3_coder", CODER.removesuffix("\n</tool_call>"), [PARIS]),
    ("qwen3_coder", CODER.replace("Paris", "a</parameter>b\n\n<x>"), [("call", ("get_weather", {"city": "a</parameter>b\n\n<x>"}))]),
    ("qwen3_coder", "<tool_call>\n<function=look_up>\n</function>\n</tool_call>", [("call", ("look_up", {}))]),
    ("glm", GLM, [PARIS]),
    ("glm", f"\n{GLM}\n{GLM}", [PARIS, PARIS]),
    ("glm", "<tool_call>look_up\n</tool_call>", [("call", ("look_up", {}))]),
    ("deepseek", f"{D_OPEN}{D_CALL}\n{D_CALL}{D_CLOSE}", [PARIS, PARIS]),
    ("deepseek", f"x{D_OPEN}{D_SHORT}{D_SHORT}{D_CLOSE}", [("text", "x"), PARIS, PARIS]),
    ("deepseek", f"{D_OPEN}{D_CALL}", [PARIS]),
    ("gemma", GEMMA, [PARIS]),
    ("gemma", f"{GEMMA}{GEMMA}", [PARIS, PARIS]),
    ("gemma", '<|tool_call>call:get_weather{days:3,exact:true,hint:null,more:{a:[1,<|"|>}<|"|>,{}],<|"|>b:<|"|>:2.5},near:[]}<tool_call|>',
     [("call", ("get_weather", {"days": 3, "exact": True, "hint": None, "more": {"a": [1, "}", {}], "b:": 2.5}, "near": []}))]),
    ("gemma", "<|tool_call>call:look_up{}<tool_call|>", [("call", ("look_up", {}))]),
    ("gemma", "<|tool_call>call:look_up{key:7}<tool_call|>", [("call", ("look_up", {"key": "7"}))]),
    ("functiongemma", FUNCTION, [PARIS]),
    ("pythonic", PYTHON, [PARIS]),
    ("pythonic", f"I look.{PYTHON}", [("text", "I look."), PARIS]),
    ("pythonic", PYTHON.replace("]", ", look_up()]"), [PARIS, ("call", ("look_up", {}))]),
    ("pythonic", "[get_weather(city='Paris')]", [PARIS]),
    ("pythonic", PYTHON.replace("Paris", "it's \\n so"), [("call", ("get_weather", {"city": "it's \n so"}))]),
    ("pythonic", PYTHON.replace("'Paris'", '"<|tool_call_end|>"'), [("call", ("get_weather", {"city": "<|tool_call_end|>"}))]),
    (
        "pythonic",
        "[get_weather(days=-3, exact=True, hint=None, ratio=1.5, near=['a', \"b\"], more={\"x\": [1, false]})]",
        [("call", ("get_weather", {"days": -3, "exact": True, "hint": None, "ratio": 1.5, "near": ["a", "b"], "more": {"x": [1, False]}}))],
    ),
]  # fmt: skip

TEXTS: list[tuple[str, str]] = [
    *[(name, text) for name in FORMS for text in ("", "  \n ", "just text", "{", "[", "<", "a [1] {b} <c>")],
    *[(name, "[" * 20_000) for name in FORMS],
    *[(name, opening + "{" * 5_000) for name in FORMS for opening in FORMS[name].opens],
    *[(name, opening) for name in FORMS for opening in FORMS[name].opens],
    *[(name, f'{{"name": "unknown", "arguments": {{}}}}{end}') for name in FORMS for end in ("", " ", "x")],
    ("hermes", TAGGED.replace("get_weather", "unknown")),
    ("hermes", '<tool_call>{"name": "look_up", "arguments"'),
    ("hermes", "<tool_call>{oops}</tool_call>"),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": {"x": NaN}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": {"x": 1e999}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>"),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": {"x": "\\ud800"}}</tool_call>'),
    ("hermes", f"{CALL} and more"),
    ("hermes", '{"weather": "sunny"}'),
    ("json", f"{CALL} and more"),
    ("json", f"[{CALL}, 1]"),
    ("llama3", f"{PARAMETERS} and more"),
    ("llama3", f"{PARAMETERS}; 1"),
    ("llama3", '<|python_tag|>brave_search.call(query="x")'),
    ("mistral", "[TOOL_CALLS]get_weather[ARGS]"),
    ("mistral", "[TOOL_CALLS]get_weather[ARGS]{oops}"),
    ("mistral", '[TOOL_CALLS]unknown[ARGS]{"city": "Paris"}'),
    ("mistral", f"[TOOL_CALLS][{CALL}"),
    ("qwen3_coder", CODER.replace("get_weather", "unknown")),
    ("qwen3_coder", CODER.replace("</function>", "")),
    ("qwen3_coder", CODER.replace("\n</parameter>", "")),
    ("qwen3_coder", CODER[:60]),
    ("glm", GLM.replace("get_weather", "unknown")),
    ("glm", GLM.replace("<arg_value>", "")),
    ("deepseek", f"{D_OPEN}{D_CALL.replace('get_weather', 'unknown')}{D_CLOSE}"),
    ("deepseek", f"{D_OPEN}{D_CLOSE}"),
    ("gemma", GEMMA.replace("get_weather", "unknown")),
    ("pythonic", PYTHON.replace("get_weather", "unknown")),
    ("pythonic", PYTHON.replace("'Paris'", "x")),
    ("pythonic", PYTHON.replace("city=", "")),
    ("pythonic", "[get_weather(city='Paris')] and more"),
    ("pythonic", "[link](there)"),
    ("gemma", GEMMA.replace('<|"|>}', "}")),
    ("gemma", "<|tool_call>call:look_up{key:}<tool_call|>"),
    ("gemma", "<|tool_call>call:look_up{key:<|\"|>a<|\"|>,}<tool_call|>"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "expected"), FOUND)
@settings(max_examples=5, deadline=None)
@given(places=st.lists(st.integers(0, 300), max_size=12))
def test_calls_are_found_however_the_text_is_cut(
    name: str, text: str, expected: kit.Shape, places: list[int]
) -> None:
    assert kit.calls(FORMS[name], kit.cut(text, places)) == expected


@pytest.mark.parametrize(("name", "text", "expected"), FOUND)
def test_a_call_that_arrives_letter_by_letter_is_the_same(name: str, text: str, expected: kit.Shape) -> None:
    assert kit.calls(FORMS[name], list(text)) == expected


@pytest.mark.parametrize(("name", "text"), TEXTS)
@settings(max_examples=2, deadline=None)
@given(places=st.lists(st.integers(0, 300), max_size=8))
def test_what_is_no_call_is_text_exactly_as_sampled(name: str, text: str, places: list[int]) -> None:
    found = kit.calls(FORMS[name], kit.cut(text, places))
    assert kit.said(found) == text
    assert all(kind == "text" for kind, _ in found)


# -- any text at all


def _marks(name: str) -> list[str]:
    form = FORMS[name]
    extra = {
        "qwen3_coder": ["<parameter=city>", "</parameter>", "<function=get_weather>", "\n"],
        "glm": ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "get_weather", "city"],
        "deepseek": [
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "get_weather",
            "```json\n",
        ],
        "mistral": ["[ARGS]", "[CALL_ID]", "get_weather"],
        "gemma": ["call:get_weather", '<|"|>', "city:"],
        "functiongemma": ["call:get_weather", "<escape>", "city:"],
        "pythonic": ["[get_weather(", "city=", "'", ")]", "=1"],
    }
    shared = [
        CALL,
        PARAMETERS,
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ",",
        ":",
        ";",
        " ",
        "\n",
        "a",
        '{"city": "Paris"}',
        "é🙂",
    ]
    return [*form.opens, *form.closes, *extra.get(name, []), *shared]


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_text_gives_the_same_pieces_however_it_is_cut(name: str, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(_marks(name)) | st.text(max_size=3), max_size=14))
    text = "".join(words)
    places = data.draw(st.lists(st.integers(0, 400), max_size=12))
    whole = kit.calls(FORMS[name], [text])
    assert kit.calls(FORMS[name], kit.cut(text, places)) == whole
    assert kit.calls(FORMS[name], list(text)) == whole
    if not any(kind == "call" for kind, _ in whole):
        assert kit.said(whole) == text


# -- a written call is read back

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "city": WORDS,
        "days": st.integers(-(10**20), 10**20),
        "exact": st.booleans(),
        "near": st.lists(WORDS | st.integers(), max_size=3),
        "more": st.dictionaries(WORDS, st.none() | WORDS | st.booleans(), max_size=3),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
    },
)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bare(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def _gemma(value: object, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        inner = ",".join(f"{quote}{key}{quote}:{_gemma(item, quote)}" for key, item in value.items())
        return "{" + inner + "}"
    if isinstance(value, list):
        return "[" + ",".join(_gemma(item, quote) for item in value) + "]"
    return _json(value)


def _written(name: str, arguments: dict[str, Any]) -> str:
    """A call of get_weather as the format writes it."""
    body = {"name": "get_weather", "arguments": arguments}
    if name in ("hermes", "json"):
        return call_text("get_weather", arguments) if name == "hermes" else _json(body)
    if name == "llama3":
        return _json({"name": "get_weather", "parameters": arguments})
    if name == "mistral":
        return f"[TOOL_CALLS]get_weather[ARGS]{_json(arguments)}"
    if name == "deepseek":
        return f"{D_OPEN}{D_CALL}{D_CLOSE}".replace('{"city": "Paris"}', _json(arguments))
    if name == "qwen3_coder":
        inner = "".join(
            f"<parameter={key}>\n{_bare(item)}\n</parameter>\n" for key, item in arguments.items()
        )
        return f"<tool_call>\n<function=get_weather>\n{inner}</function>\n</tool_call>"
    if name == "glm":
        inner = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(item)}</arg_value>\n"
            for key, item in arguments.items()
        )
        return f"<tool_call>get_weather\n{inner}</tool_call>"
    if name == "pythonic":
        return f"[get_weather({', '.join(f'{key}={_json(item)}' for key, item in arguments.items())})]"
    form = FORMS[name]
    assert isinstance(form, Gemma)
    inner = ",".join(f"{key}:{_gemma(item, form.quote)}" for key, item in arguments.items())
    return f"{form.opening}call:get_weather{{{inner}}}{form.closing}"


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=25, deadline=None)
@given(arguments=VALUES, places=st.lists(st.integers(0, 400), max_size=10))
def test_a_written_call_is_read_back(name: str, arguments: dict[str, Any], places: list[int]) -> None:
    text = _written(name, arguments)
    assert kit.calls(FORMS[name], kit.cut(text, places)) == [("call", ("get_weather", arguments))]


# -- text is not held back for nothing


@pytest.mark.parametrize("name", FORMS)
def test_text_leaves_as_soon_as_it_is_certain(name: str) -> None:
    parser = CallParser(FORMS[name], kit.OFFERED)
    assert kit.said(kit.shape(parser.feed("It is"))) == "It is"
    assert kit.said(kit.shape(parser.feed(" sunny. "))) == " sunny. "
    for opening in FORMS[name].opens:
        for size in range(1, len(opening)):
            parser = CallParser(FORMS[name], kit.OFFERED)
            assert kit.shape(parser.feed(f"a{opening[:size]}")) == [("text", "a")]
            assert kit.said(kit.shape(parser.feed("~"))) == f"{opening[:size]}~"


@pytest.mark.parametrize("text", ["[1] says", "{{ x }}", "[a", "{1"])
@pytest.mark.parametrize("name", ["hermes", "json", "llama3"])
def test_brackets_that_cannot_be_json_are_not_held(name: str, text: str) -> None:
    assert kit.said(kit.shape(CallParser(FORMS[name], kit.OFFERED).feed(text))) == text


@pytest.mark.parametrize(
    "name", ["hermes", "mistral", "qwen3_coder", "glm", "gemma", "functiongemma", "deepseek"]
)
def test_a_call_leaves_when_it_is_whole(name: str) -> None:
    parser = CallParser(FORMS[name], kit.OFFERED)
    assert [kind for kind, _ in kit.shape(parser.feed(_written(name, {"city": "x"})))] == ["call"]


# -- calls and messages


def test_every_call_gets_an_id_of_its_own() -> None:
    calls = [
        item
        for item in kit.run(CallParser(Hermes(), kit.OFFERED), [TAGGED + TAGGED])
        if isinstance(item, ToolCall)
    ]
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("call_") for call in calls)


def test_the_message_of_a_completion() -> None:
    def message(text: str) -> Any:
        return assistant_message(kit.run(CallParser(Hermes(), kit.OFFERED), [text]))

    assert message("").content == ""
    assert message(TAGGED).content is None
    assert message(f"a{TAGGED}").content == "a"
    assert len(message(f"a{TAGGED}").tool_calls) == 1


def test_without_tools_nothing_is_a_call() -> None:
    offered = Offered.of([])
    for form in FORMS.values():
        assert kit.run(CallParser(form, offered), [TAGGED]) == [TAGGED]
    assert kit.run(HarmonyParser(offered), ["hi"]) == ["hi"]


def test_white_space_behind_a_name_costs_its_length_and_no_more() -> None:
    """Three quantifiers in a row over the same spaces once took hours for these."""
    text = f"{D_OPEN}<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather" + " " * 4000
    assert kit.said(kit.shape(kit.run(CallParser(DeepSeek(), kit.OFFERED), [text]))) == text
