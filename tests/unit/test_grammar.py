"""Grammars: what they let a model write, in every tool format, and which schemas are refused."""

from __future__ import annotations

import contextlib
import json
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer

from art.engine.grammar import Grammars, Matcher
from art.engine.protocol import SampleRequest
from art.errors import InvalidInput, UnsupportedOption
from art.server.dialects.structured_options import response_schema, tool_choice
from art.server.structured import callable_tools, form_of
from art.testing.tiny import END, byte_tokenizer
from art.tokens.formats import REASONING_FORMATS, TOOL_FORMATS, Formats
from art.tokens.grammar import Form, grammar_for
from art.tokens.grammar_calls import TAG_STYLES
from art.tokens.grammar_schema import MAX_SCHEMA_BYTES
from art.tokens.tokenizer import Tokenizer
from art.types.messages import Thought, Tool, ToolCall, ToolChoice, parse_tools

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
ANSWER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
}


def tool(name: str, schema: Any = ANSWER, **more: Any) -> Tool:
    (parsed,) = parse_tools([{"type": "function", "function": {"name": name, "parameters": schema, **more}}])
    return parsed


TOOLS = [tool("get_weather"), tool("set-weather", {"type": "object", "properties": {}})]


@lru_cache(maxsize=2)
def fast(*, marks: bool) -> FastTokenizer:
    """A byte-level tokenizer; with `marks` those of all formats are single tokens, as their models have them."""
    tokenizer = byte_tokenizer()
    if marks:
        texts = {text for item in TOOL_FORMATS for text in item.marks if not text.startswith("'")}
        texts |= {
            text for pair in REASONING_FORMATS.values() if pair for text in (pair.open.strip(), pair.close)
        }
        tokenizer.add_special_tokens(sorted(texts))
    return tokenizer


@lru_cache(maxsize=2)
def grammars(*, marks: bool) -> Grammars:
    return Grammars(fast(marks=marks), vocab_size=fast(marks=marks).get_vocab_size())


def formats(tools: str = "hermes", reasoning: str = "none", *, marks: bool = False) -> Formats:
    tokenizer = fast(marks=marks)
    wrapped = Tokenizer(tokenizer, specials={}, stop_token_ids=frozenset({tokenizer.token_to_id(END)}))
    kept = frozenset(wrapped.added_tokens().values()) - {256, 257}
    return Formats(tools=tools, reasoning=reasoning, tokenizer=wrapped, kept_token_ids=kept)


def grammar(form: Form, chosen: Formats, prompt: str = PROMPT) -> str:
    return grammar_for(form, chosen, chosen.tokenizer.encode(prompt))


def matcher(text: str, chosen: Formats, stops: tuple[int, ...] = (257,)) -> Matcher:
    engine = grammars(marks=len(chosen.tokenizer.added_tokens()) > 2)
    return engine.matcher(SampleRequest([0], grammar=text, stop_token_ids=stops))


def taken(text: str, chosen: Formats, written: str) -> str:
    """How much of `written` the grammar takes; "!" behind it where the turn may end there."""
    state = matcher(text, chosen)
    done = []
    for token in chosen.tokenizer.encode(written):
        if not state.take(token):
            break
        done.append(token)
    assert state.error() is None
    return chosen.tokenizer.decode(done, skip_special=False) + ("!" if state.take(257) else "")


@pytest.mark.parametrize(
    ("written", "taken_of_it"),
    [
        ('{"city": "Oslo", "degrees": -3}', '{"city": "Oslo", "degrees": -3}!'),
        ('{\n  "city": "Rome",\n  "degrees": 21\n}', '{\n  "city": "Rome",\n  "degrees": 21\n}!'),
        ('{"city": "Paris"}', '{"city": "'),
        ('{"degrees": 3}', '{"'),
        ('{"city": "Oslo"}', '{"city": "Oslo"'),
        ('{   "city"', "{ "),
        ("Sure: {", ""),
    ],
)
def test_an_answer_follows_its_schema(written: str, taken_of_it: str) -> None:
    chosen = formats()
    assert taken(grammar(Form(schema=ANSWER), chosen), chosen, written) == taken_of_it


def test_any_object_and_no_form_at_all() -> None:
    chosen = formats()
    anything = grammar(Form(schema={}), chosen)
    assert taken(anything, chosen, '{"a": [1, null, {"b": "ü🙂"}]}') == '{"a": [1, null, {"b": "ü🙂"}]}!'
    assert taken(anything, chosen, "[1]") == ""
    assert grammar(Form(tools=TOOLS), chosen) == ""


@st.composite
def described(draw: st.DrawFn, depth: int = 3) -> tuple[dict[str, Any], Any]:
    """A schema and a value of it."""
    kind = draw(
        st.sampled_from(["string", "integer", "number", "boolean", "null", "enum", "array", "object"])
    )
    if depth == 0 and kind in ("array", "object"):
        kind = "string"
    if kind == "string":
        value = draw(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=8))
        return {"type": "string", "maxLength": 8}, value
    if kind == "enum":
        values = draw(st.lists(st.one_of(st.integers(-99, 99), st.text('abü"\\\n', max_size=4)), min_size=1))
        return {"enum": values}, draw(st.sampled_from(values))
    if kind == "array":
        schema, value = draw(described(depth - 1))
        return {"type": "array", "items": schema, "maxItems": 3}, [value] * draw(st.integers(0, 3))
    if kind == "object":
        names = draw(st.lists(st.text('abcü "', min_size=1, max_size=4), max_size=3, unique=True))
        parts = {name: draw(described(depth - 1)) for name in names}
        required = [name for name in names if draw(st.booleans())]
        schema = {
            "type": "object",
            "properties": {name: part[0] for name, part in parts.items()},
            "required": required,
            "additionalProperties": False,
        }
        present = {name: part[1] for name, part in parts.items() if name in required or draw(st.booleans())}
        return schema, present
    scalars: dict[str, st.SearchStrategy[Any]] = {
        "integer": st.integers(-(10**12), 10**12),
        "number": st.floats(-1e6, 1e6, width=32),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return {"type": kind}, draw(scalars[kind])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(described(), st.sampled_from([None, 1, 2, 4]))
def test_whatever_follows_a_schema_can_be_written(
    pair: tuple[dict[str, Any], Any], indent: int | None
) -> None:
    schema, value = pair
    written = json.dumps(value, indent=indent, ensure_ascii=False)
    chosen = formats()
    assert taken(grammar(Form(schema=schema), chosen), chosen, written) == f"{written}!"


FORCIBLE = [item.name for item in TOOL_FORMATS if item.envelope is not None]


def written_call(name: str, chosen: Formats, arguments: str) -> str:
    """A call as the format's envelope says."""
    envelope = chosen.call_envelope()
    assert envelope is not None
    if envelope.style == "named":
        return f"{envelope.begin}{name}{envelope.separator}{arguments}{envelope.end}"
    return f'{envelope.begin}{{"name": "{name}", "{envelope.arguments}": {arguments}}}{envelope.end}'


@pytest.mark.parametrize("marks", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FORCIBLE)
def test_a_forced_call_is_one_that_the_parser_reads(name: str, marks: bool) -> None:
    chosen = formats(name, "harmony" if name == "harmony" else "none", marks=marks)
    rules = grammar(Form(tools=TOOLS, must_call=True), chosen)
    text = written_call("get_weather", chosen, '{"city": "Oslo", "degrees": 3}')
    assert taken(rules, chosen, text) == f"{text}!"
    parser = chosen.parser(TOOLS, prompt_token_ids=chosen.tokenizer.encode(PROMPT))
    pieces = [*parser.feed(text), *parser.finish()]
    (call,) = [piece for piece in pieces if isinstance(piece, ToolCall)]
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Oslo", "degrees": 3},
    )
    assert not [piece for piece in pieces if isinstance(piece, str) and piece.strip()]
    unknown = written_call("get_nothing", chosen, "{}")
    assert taken(rules, chosen, unknown) == unknown[: unknown.index("nothing")]
    wrong = written_call("get_weather", chosen, '{"city": "Paris"}')
    assert taken(rules, chosen, wrong) == wrong[: wrong.index("Paris")]
    assert taken(rules, chosen, "It is sunny.") == ""


FRAMELESS = [item.name for item in TOOL_FORMATS if item.envelope is None and item.name not in TAG_STYLES]


@pytest.mark.parametrize("name", FRAMELESS)
def test_a_format_without_a_frame_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedOption, match=name):
        grammar(Form(tools=TOOLS, must_call=True), formats(name, marks=True))


@pytest.mark.parametrize("name", FRAMELESS)
def test_beside_a_schema_such_a_format_calls_as_it_likes(name: str) -> None:
    chosen = formats(name, marks=True)
    rules = grammar(Form(schema=ANSWER, tools=TOOLS), chosen)
    answer = '{"city": "Oslo", "degrees": 3}'
    assert taken(rules, chosen, answer) == f"{answer}!"
    call = f"{chosen.call_marks()[0]}call:get_weather{{city:<|x|>}} and so on"
    assert taken(rules, chosen, call) == f"{call}!"
    assert taken(rules, chosen, "It is") == ""


PLACES = tool(
    "find",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "kind": {"$ref": "#/$defs/kind"},
            "count": {"type": "integer"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/kind"}},
            "near": {"type": "boolean"},
        },
        "required": ["text", "kind", "tags"],
        "$defs": {"kind": {"enum": ["city", "river"]}},
    },
)
TAGGED = {
    "qwen3_coder": (
        "<tool_call>\n<function=find>\n<parameter=text>\nOslo <b>\nby the sea\n</parameter>\n"
        "<parameter=kind>\nriver\n</parameter>\n<parameter=count>\n3\n</parameter>\n"
        '<parameter=tags>\n["city"]\n</parameter>\n</function>\n</tool_call>'
    ),
    "glm": (
        "<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>Oslo <b>\nby the sea</arg_value>\n"
        "<arg_key>kind</arg_key>\n<arg_value>river</arg_value>\n<arg_key>count</arg_key>\n"
        '<arg_value>3</arg_value>\n<arg_key>tags</arg_key>\n<arg_value>["city"]</arg_value>\n</tool_call>'
    ),
}


@pytest.mark.parametrize("marks", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", TAG_STYLES)
def test_a_forced_call_with_a_tag_for_every_argument(name: str, marks: bool) -> None:
    chosen = formats(name, marks=marks)
    rules = grammar(Form(tools=[PLACES, *TOOLS], must_call=True), chosen)
    text = TAGGED[name]
    assert taken(rules, chosen, text) == f"{text}!"
    parser = chosen.parser([PLACES], prompt_token_ids=chosen.tokenizer.encode(PROMPT))
    (call,) = [*parser.feed(text), *parser.finish()]
    assert isinstance(call, ToolCall)
    arguments = json.loads(call.function.arguments)
    assert arguments == {"text": "Oslo <b>\nby the sea", "kind": "river", "count": 3, "tags": ["city"]}
    for wrong, at in (("river", "lake"), ('["city"]', '["lake"]'), (">3<", ">x<"), ("\n3\n", "\nx\n")):
        changed = text.replace(wrong, at, 1)
        if changed != text:
            cut = taken(rules, chosen, changed)
            assert changed.startswith(cut)
            assert len(cut) < len(changed)
    empty = text[: text.index("find")] + "set-weather"
    assert taken(rules, chosen, empty) == empty


def test_parallel_calls_and_only_one() -> None:
    chosen = formats()
    one = '<tool_call>\n{"name": "set-weather", "arguments": {}}\n</tool_call>'
    both = f"{one}\n{one}"
    assert taken(grammar(Form(tools=TOOLS, must_call=True), chosen), chosen, both) == f"{both}!"
    alone = grammar(Form(tools=TOOLS, must_call=True, parallel=False), chosen)
    assert taken(alone, chosen, both) == f"{one}!"


def test_marks_that_are_tokens_are_not_taken_as_text() -> None:
    """`<`, `tool`, ... spell the mark, but they are not it."""
    chosen = formats(marks=True)
    rules = grammar(Form(tools=TOOLS, must_call=True), chosen)
    state = matcher(rules, chosen)
    spelled = fast(marks=False).encode("<tool_call>").ids
    assert not state.take(spelled[0])
    assert state.take(chosen.tokenizer.added_tokens()["<tool_call>"])
    # Nor is a mark part of a text inside the arguments.
    rules = grammar(Form(tools=[tool("say", {"type": "object"})], must_call=True), chosen)
    text = '<tool_call>{"name": "say", "arguments": {"text": "'
    assert taken(rules, chosen, f"{text}</tool_call>") == text


@pytest.mark.parametrize("marks", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("reasoning", ["think", "mistral"])
def test_reasoning_may_come_first(reasoning: str, marks: bool) -> None:
    chosen = formats(reasoning=reasoning, marks=marks)
    pair = chosen.reasoning_marks()
    assert pair is not None
    answer = '{"city": "Oslo", "degrees": 3}'
    thought = f"{pair.open}is it {{Rome}}? No.{pair.close}\n\n{answer}"
    rules = grammar(Form(schema=ANSWER), chosen)
    assert taken(rules, chosen, thought) == f"{thought}!"
    assert taken(rules, chosen, answer) == f"{answer}!"
    assert taken(rules, chosen, f"{pair.open}no end{END}") == f"{pair.open}no end"
    inside = grammar(Form(schema=ANSWER), chosen, prompt=f"{PROMPT}{pair.open}\n")
    rest = f"is it?{pair.close}{answer}"
    assert taken(inside, chosen, rest) == f"{rest}!"
    assert taken(inside, chosen, answer) == answer  # reasoning, and no answer yet
    parser = chosen.parser((), prompt_token_ids=chosen.tokenizer.encode(PROMPT))
    pieces = [*parser.feed(thought), *parser.finish()]
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == answer
    assert any(isinstance(piece, Thought) for piece in pieces)


def test_harmony_answers_in_its_final_channel() -> None:
    chosen = formats("harmony", "harmony", marks=True)
    answer = '{"city": "Oslo", "degrees": 3}'
    final = f"<|channel|>final<|message|>{answer}"
    analysis = "<|channel|>analysis<|message|>Oslo.<|end|><|start|>assistant"
    rules = grammar(Form(schema=ANSWER), chosen)
    assert taken(rules, chosen, final) == f"{final}!"
    assert taken(rules, chosen, analysis + final) == f"{analysis}{final}!"
    assert taken(rules, chosen, answer) == ""
    parser = chosen.parser((), prompt_token_ids=[])
    pieces = [*parser.feed(analysis + final), *parser.finish()]
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == answer


def test_tools_beside_a_schema_are_an_alternative() -> None:
    chosen = formats()
    rules = grammar(Form(schema=ANSWER, tools=TOOLS), chosen)
    call = '<tool_call>\n{"name": "set-weather", "arguments": {}}\n</tool_call>'
    answer = '{"city": "Oslo", "degrees": 3}'
    assert taken(rules, chosen, call) == f"{call}!"
    assert taken(rules, chosen, answer) == f"{answer}!"
    assert taken(rules, chosen, "no") == ""


REFUSED: list[tuple[Any, str]] = [
    ({"type": "objekt"}, "objekt"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"not": {}}, "not"),
    ({"if": {}, "then": {}}, "if"),
    ({"type": "string", "format": "colour"}, "colour"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
    ({"type": "string", "pattern": "("}, "unclosed"),
    ({"$ref": "#/$defs/nowhere"}, "nowhere"),
    ({"$ref": "https://example.org/x.json"}, "example.org"),
    ({"enum": []}, "Unsatisfiable"),
    ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
    ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}, "oneOf"),
    ({"description": "x" * (MAX_SCHEMA_BYTES + 1)}, "bytes"),
    ({"const": "\ud800"}, "hex escape"),
]


@pytest.mark.parametrize(("schema", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_schema_that_cannot_be_followed_is_refused_with_its_keyword(schema: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        grammar(Form(schema=schema), formats())
    assert words in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_annotations_are_no_constraints() -> None:
    notes = {
        "title": "T",
        "description": "d",
        "default": 3,
        "examples": [1],
        "$comment": "c",
        "deprecated": True,
    }
    notes |= {"readOnly": True, "$schema": "https://json-schema.org/draft/2020-12/schema", "x-order": 1}
    grammar(Form(schema={**ANSWER, **notes}), formats())


def nested(levels: int, inner: Any) -> Any:
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


def test_a_schema_made_to_hurt_ends_in_an_error_or_a_grammar() -> None:
    """Definitions behind definitions overflow a usual stack inside the compiler, which would end the process."""
    chain = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(1900)}
    chain["d1900"] = {"type": "integer"}
    text = grammar(Form(schema={"$ref": "#/$defs/d0", "$defs": chain}), formats())
    assert taken(text, formats(), "[[[[") == "[[[["
    merged = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"minimum": i}]} for i in range(2000)}
    merged["d2000"] = {"type": "integer"}
    wide = {"allOf": [{"anyOf": [{"properties": {f"p{j}_{i}": {}}} for i in range(8)]} for j in range(9)]}
    for schema in (
        {"$ref": "#/$defs/d0", "$defs": merged},
        wide,
        nested(200, {"type": "string"}),
        {"type": "string", "pattern": "((a{0,900}){0,900}){0,900}"},
        {"allOf": [{"type": "string", "pattern": f".*a.{{{i}}}b.*"} for i in range(5, 16)]},
    ):
        with contextlib.suppress(InvalidInput):
            assert grammar(Form(schema=schema), formats())


def test_a_tools_schema_is_followed_as_far_as_it_can_be_unless_it_is_strict() -> None:
    odd = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True}},
    }
    chosen = formats()
    rules = grammar(Form(tools=[tool("f", odd)], must_call=True), chosen)
    text = '<tool_call>\n{"name": "f", "arguments": {"tags": ['
    assert taken(rules, chosen, f'{text}"b"') == f'{text}"'
    with pytest.raises(InvalidInput, match="uniqueItems") as caught:
        grammar(Form(tools=[tool("f", odd, strict=True)], must_call=True), chosen)
    assert "'f'" in str(caught.value)


def test_names_and_texts_that_need_quotes() -> None:
    chosen = formats()
    name = 'größe "x" \\ 🙂'
    rules = grammar(Form(tools=[tool(name, {"type": "object"})], must_call=True), chosen)
    body = json.dumps({"name": name, "arguments": {"a\n": "</tool_call>"}}, ensure_ascii=False)
    call = f"<tool_call>\n{body}\n</tool_call>"
    assert taken(rules, chosen, call) == f"{call}!"


def test_a_matcher_takes_what_its_mask_allows() -> None:
    chosen = formats(marks=True)
    text = grammar(Form(schema=ANSWER, tools=TOOLS), chosen)
    written = chosen.tokenizer.encode('{"city": "Oslo", "degrees": 12')
    vocab = fast(marks=True).get_vocab_size()
    for length in (0, 1, 3, 11, 25, len(written)):
        allowed = None
        for token in range(vocab):
            state = matcher(text, chosen)
            assert all(state.take(before) for before in written[:length])
            allowed = state.allowed() if allowed is None else allowed
            assert state.take(token) == bool(allowed[token]), (length, token)


def test_a_grammar_ends_where_nothing_can_follow_or_a_stop_token_may() -> None:
    chosen = formats()
    text = grammar(Form(schema={"type": "integer"}), chosen)
    state = matcher(text, chosen, stops=(257, 256))
    assert not state.take(256)
    assert state.take(chosen.tokenizer.encode("7")[0])
    assert not state.complete  # more digits may follow
    assert state.take(256)
    assert state.complete
    state = matcher(grammar(Form(schema={"const": "x"}), chosen), chosen, stops=())
    assert [state.take(token) for token in chosen.tokenizer.encode('"x"')] == [True] * 3
    assert state.complete
    assert not state.take(99999)


def test_a_dead_end_is_an_error_with_its_reason() -> None:
    chosen = formats()
    # The model has no token for this byte sequence's end: 200 is beyond its vocabulary here.
    state = matcher('%llguidance {}\nstart: "a" <[256]> "b"', chosen)
    assert state.take(chosen.tokenizer.encode("a")[0])
    small = Grammars(fast(marks=False), vocab_size=200).matcher(
        SampleRequest([0], grammar='%llguidance {}\nstart: "a" <[257]>', stop_token_ids=(3,))
    )
    assert small.take(chosen.tokenizer.encode("a")[0])
    assert not small.allowed().any()
    error = small.error()
    assert error is not None
    assert "dead end" in str(error)
    assert not small.complete


def test_a_text_that_is_no_grammar_is_refused_by_the_engine() -> None:
    for bad in ("start: nothing", "%llguidance {}\nstart: %json {", "{"):
        with pytest.raises(InvalidInput, match="cannot be compiled"):
            matcher(bad, formats())


# -- what a request asks


def test_the_options_of_a_request() -> None:
    named = {"type": "function", "function": {"name": "f"}}
    assert tool_choice({}) == ToolChoice()
    assert tool_choice({"tool_choice": "required"}) == ToolChoice("required")
    assert tool_choice({"tool_choice": named}) == ToolChoice("named", "f")
    several = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    assert tool_choice({"tool_choice": several}) == ToolChoice("required", allowed=("f",))
    assert response_schema({"response_format": {"type": "text"}}) is None
    assert response_schema({"response_format": {"type": "json_object"}}) == {}
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER, "strict": True}}
    assert response_schema({"response_format": asked}) == ANSWER


def test_the_form_of_a_request() -> None:
    form = form_of(TOOLS, ToolChoice("named", "set-weather"), None, True)
    assert ([item.function.name for item in form.tools], form.must_call, form.parallel) == (
        ["set-weather"],
        True,
        False,
    )
    assert form_of(TOOLS, ToolChoice(), None, True).free
    assert callable_tools(TOOLS, ToolChoice("none")) == []
    only = ToolChoice("auto", allowed=("get_weather",))
    assert callable_tools(TOOLS, only) == TOOLS[:1]
    with pytest.raises(InvalidInput, match="get_rich"):
        form_of(TOOLS, ToolChoice("named", "get_rich"), None, True)
    with pytest.raises(InvalidInput, match="get_rich"):
        form_of(TOOLS, ToolChoice("auto", allowed=("get_rich",)), None, True)
    with pytest.raises(InvalidInput, match="needs `tools`"):
        form_of([], ToolChoice("required"), None, True)
