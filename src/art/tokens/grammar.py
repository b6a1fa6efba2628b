"""Grammars for the llguidance package: what a completion must be, for `response_format` and `tool_choice`.

A grammar is text in llguidance's dialect of Lark. Marks that are single tokens of the model (`<tool_call>`,
`</think>`) are written as token ids: no text that only looks like them is meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from art.errors import DeadlineExceeded, InvalidInput, UnsupportedOption
from art.tokens.formats import CallEnvelope, Formats
from art.tokens.parsers import harmony
from art.tokens.tokenizer import Tokenizer
from art.types.messages import Tool
from art.utils.deep_stack import call_deep

MAX_SCHEMA_BYTES = 128 * 1024
"""Of all schemas of a request, as JSON. The compiler recurses once for every definition behind a definition; this
many bytes of them fit its stack several times."""
COMPILE_SECONDS = 10.0
"""The compiler's own limits end its work within about a second; this is for a machine that is very busy."""
REMEMBERED = 256
"""Schemas and grammars whose check is kept: the calls of a rollout and of its group repeat them."""

WHITESPACE = r" |\r?\n( {0,24}|\t{0,8})"
"""Between the parts of JSON: nothing, a space, or a new line with its indentation. Without a bound a model that
strays writes white space to the end of its tokens."""
FREE = r"/(.|\n)*/"
GAP = r"[ \r\n]{1,4}"
"""Between reasoning, calls and their marks, where it is allowed at all."""


@dataclass(frozen=True, slots=True)
class Form:
    """What an answer must be."""

    schema: Mapping[str, Any] | None = None
    """The JSON schema of the answer's text; {} is any object. None is free text."""
    tools: Sequence[Tool] = ()
    """Those that may be called."""
    must_call: bool = False
    """At least one call and no text."""
    parallel: bool = True
    """More than one call is possible."""

    @property
    def free(self) -> bool:
        """Nothing to constrain."""
        return self.schema is None and not self.must_call


def grammar_for(form: Form, formats: Formats, prompt_token_ids: Sequence[int]) -> str:
    """The grammar of a completion, "" where it is free. The prompt's end tells whether it begins inside reasoning.

    InvalidInput for a schema that is none, with the keyword; UnsupportedOption where the model's format has no
    calls that could be forced. Takes up to seconds for a large schema: not for an event loop.
    """
    if form.free:
        return ""
    writer = _Writer(formats.tokenizer)
    bodies: list[str] = []
    if form.must_call or (form.schema is not None and form.tools):
        envelope = formats.call_envelope()
        if envelope is None:
            raise UnsupportedOption(
                f"this model cannot be made to call a tool: its tool format is {formats.tools!r}",
                cause="`tool_choice` and `response_format` beside tools need a format whose calls have a fixed frame",
                hint='use tool_choice "auto" and check the answer in the reward, or set ModelConfig.tool_parser',
            )
        bodies.append(writer.calls(form.tools, envelope, parallel=form.parallel))
    if form.schema is not None and not form.must_call:
        answer = writer.json(answer_schema(form.schema), "answer")
        bodies.append(f"{writer.text(_FINAL)} {answer}" if formats.tools == "harmony" else answer)
    thought = _thought(writer, formats, prompt_token_ids)
    body = f"({' | '.join(bodies)})"
    grammar = writer.grammar(f"{thought} {body}" if thought else body)
    _check_size(grammar)
    problem = _problem(grammar)
    if problem:
        raise InvalidInput("the answer's form cannot be followed", cause=problem, hint=_HINT)
    return grammar


_HINT = (
    "llguidance's JSON schema documentation lists the keywords it follows; leave the others out and check them"
    " in the reward"
)


def answer_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a `response_format`, checked; any object for {}. InvalidInput names the keyword."""
    schema = schema or {"type": "object"}
    problem = _schema_problem(_as_json(_with_whitespace(schema)))
    if problem:
        raise InvalidInput(
            "the JSON schema of the answer cannot be followed",
            cause=problem,
            hint=_HINT,
        )
    return dict(schema)


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments, checked.

    A `strict` tool's schema is followed to the letter or refused. Another's is followed as far as the compiler
    knows its keywords, as the client gives no promise about them either.
    """
    function = tool.function
    schema: dict[str, Any] = {"type": "object", **(function.parameters or {})}
    problem = _schema_problem(_as_json(_with_whitespace(schema)))
    if problem and (function.model_extra or {}).get("strict") is not True:
        schema["x-guidance"] = {"lenient": True, "coerce_one_of": True}
        problem = _schema_problem(_as_json(_with_whitespace(schema)))
    if problem:
        raise InvalidInput(
            f"the parameters of the tool {function.name!r} cannot be followed", cause=problem, hint=_HINT
        )
    return schema


class _Writer:
    """Rules of one grammar."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._added = tokenizer.added_tokens()
        names = sorted((re.escape(name) for name in self._added if name.strip()), key=len, reverse=True)
        self._mark = re.compile("|".join(names)) if names else None
        self._rules: list[str] = []

    def grammar(self, start: str) -> str:
        """The whole text."""
        return "\n".join(
            ["%llguidance {}", f"start: {start}", *self._rules, f"WS: /{WHITESPACE}/", f"GAP: /{GAP}/"]
        )

    def rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return name

    def json(self, schema: Mapping[str, Any], name: str) -> str:
        """A rule for JSON of a schema, whose `$ref`s stay its own."""
        return self.rule(name, f"%json {_as_json(_with_whitespace(schema))}")

    def text(self, text: str) -> str:
        """A fixed text, its single tokens by id; white space at its ends may be there or not."""
        parts = [token for part in self._parts(text) if (token := _lark(part))]
        return " ".join(parts)

    def _parts(self, text: str) -> Iterator[str | int]:
        at = 0
        for found in self._mark.finditer(text) if self._mark else ():
            yield text[at : found.start()]
            yield self._added[found.group()]
            at = found.end()
        yield text[at:]

    def until(self, mark: str) -> str:
        """Any text up to the first `mark`, and the mark."""
        if mark in self._added:
            return f"{self.rule('free', FREE)} <[{self._added[mark]}]>"
        self.rule(f"free[stop={json.dumps(mark)}]", FREE)
        return "free"

    def calls(self, tools: Sequence[Tool], envelope: CallEnvelope, *, parallel: bool) -> str:
        """A rule for one call, or one and more, of the tools."""
        if not tools:
            raise InvalidInput("a call is asked for, but there are no `tools`")
        begin, end = self.text(envelope.begin), self.text(envelope.end)
        bodies = []
        for number, tool in enumerate(tools):
            arguments = self.json(arguments_schema(tool), f"arguments_{number}")
            bodies.append(self.rule(f"tool_{number}", self._call(tool.function.name, arguments, envelope)))
        call = self.rule("call", f"{begin} ({' | '.join(bodies)}) {end}")
        if not parallel or (envelope.style == "json" and not envelope.separator):
            return call
        between = self.text(envelope.separator) if envelope.style == "json" else "GAP?"
        return self.rule("calls", f"{call} ({between} {call})*")

    def _call(self, name: str, arguments: str, envelope: CallEnvelope) -> str:
        if envelope.style == "named":
            return f"{json.dumps(name)} {self.text(envelope.separator)} {arguments}"
        keys = [json.dumps(json.dumps(key)) for key in ("name", envelope.arguments)]
        value = json.dumps(json.dumps(name, ensure_ascii=False))
        return (
            f'"{{" WS? {keys[0]} WS? ":" WS? {value} WS? "," WS? {keys[1]} WS? ":" WS? {arguments} WS? "}}"'
        )


def _lark(part: str | int) -> str:
    """A part of a fixed text in Lark."""
    if isinstance(part, int):
        return f"<[{part}]>"
    inner = part.strip()
    if not inner:
        return "GAP?" if part else ""
    before = "GAP? " if part[0].isspace() else ""
    after = " GAP?" if part[-1].isspace() else ""
    return f"{before}{json.dumps(inner)}{after}"


_FINAL = f"{harmony.CHANNEL}final{harmony.MESSAGE}"
_ANALYSIS = (f"{harmony.CHANNEL}analysis{harmony.MESSAGE}", harmony.END)
_NEXT = f"{harmony.START}assistant"


def _thought(writer: _Writer, formats: Formats, prompt_token_ids: Sequence[int]) -> str:
    """The reasoning in front of the answer, "" where the model has none. It may be left out unless the prompt opened it."""
    if formats.tools == "harmony":
        return writer.rule(
            "thought", f"({writer.text(_ANALYSIS[0])} {writer.until(_ANALYSIS[1])} {writer.text(_NEXT)})?"
        )
    marks = formats.reasoning_marks()
    if marks is None:
        return ""
    rest = f"{writer.until(marks.close)} GAP?"
    if formats.opened(prompt_token_ids):
        return rest
    return writer.rule("thought", f"({writer.text(marks.open)} {rest})?")


def _with_whitespace(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with our white space, unless its own options for the compiler (`x-guidance`) speak of it."""
    own = schema.get("x-guidance")
    options = dict(own) if isinstance(own, Mapping) else {}
    if "whitespace_flexible" not in options:
        options.setdefault("whitespace_pattern", WHITESPACE)
    return {**schema, "x-guidance": options}


def _as_json(value: object) -> str:
    # ASCII alone: a lone surrogate or a line separator cannot end a line of the grammar.
    return json.dumps(value, ensure_ascii=True)


def _check_size(text: str) -> None:
    if len(text) > MAX_SCHEMA_BYTES:
        raise InvalidInput(
            f"the JSON schemas of the request have {len(text)} bytes",
            cause=f"a grammar is made of at most {MAX_SCHEMA_BYTES} bytes",
            hint="describe less in schemas, or offer fewer tools",
        )


@lru_cache(maxsize=REMEMBERED)
def _schema_problem(schema: str) -> str:
    """Why the compiler cannot follow a schema, "" when it can."""
    _check_size(schema)
    return _problem(f'{{"grammars": [{{"json_schema": {schema}}}]}}')


@lru_cache(maxsize=REMEMBERED)
def _problem(grammar: str) -> str:
    """Why a grammar cannot be compiled, "" when it can."""
    try:
        bad, messages = call_deep(
            lambda: LLMatcher.validate_grammar_with_warnings(grammar),
            seconds=COMPILE_SECONDS,
            what="compiling the grammar",
        )
    except DeadlineExceeded as error:
        raise InvalidInput("the answer's form is too complicated", cause=str(error), hint=_HINT) from error
    return readable(messages[0]) if bad else ""


def readable(message: str) -> str:
    """The compiler's message without its position and without the grammar's text."""
    first = message.split("\n<state>")[0].strip().split("\n   1 |")[0]
    return (
        re.sub(r"^at \d+\(\d+\): ", "", first).removeprefix("failed to compile JSON schema: ").strip()[:500]
    )
