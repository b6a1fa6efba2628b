"""JSON schemas of requests: which ones a grammar can follow, and why the others cannot be followed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from art.errors import DeadlineExceeded, InvalidInput
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
_HINT = (
    "llguidance's JSON schema documentation lists the keywords it follows; leave the others out and check them"
    " in the reward"
)


def answer_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a `response_format`, checked; any object for {}. InvalidInput names the keyword."""
    schema = schema or {"type": "object"}
    problem = _schema_problem(as_json(with_whitespace(schema)))
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
    problem = _schema_problem(as_json(with_whitespace(schema)))
    if problem and (function.model_extra or {}).get("strict") is not True:
        schema["x-guidance"] = {"lenient": True, "coerce_one_of": True}
        problem = _schema_problem(as_json(with_whitespace(schema)))
    if problem:
        raise InvalidInput(
            f"the parameters of the tool {function.name!r} cannot be followed", cause=problem, hint=_HINT
        )
    return schema


def check_grammar(grammar: str) -> None:
    """InvalidInput for a grammar that is too large or cannot be compiled."""
    _check_size(grammar)
    problem = _problem(grammar)
    if problem:
        raise InvalidInput("the answer's form cannot be followed", cause=problem, hint=_HINT)


def with_whitespace(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with our white space, unless its own options for the compiler (`x-guidance`) speak of it."""
    own = schema.get("x-guidance")
    options = dict(own) if isinstance(own, Mapping) else {}
    if "whitespace_flexible" not in options:
        options.setdefault("whitespace_pattern", WHITESPACE)
    return {**schema, "x-guidance": options}


def as_json(value: object) -> str:
    """JSON on one line."""
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
