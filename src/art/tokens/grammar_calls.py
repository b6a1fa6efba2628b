"""Rules for tool calls, as each format writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art.errors import UnsupportedOption
from art.tokens.formats import CallEnvelope, Formats
from art.tokens.grammar_schema import arguments_schema
from art.tokens.grammar_writer import FREE, Writer
from art.tokens.parsers.typed import kinds_of
from art.types.messages import Tool


@dataclass(frozen=True, slots=True)
class TagStyle:
    """A format that writes every argument between tags of its own, values as bare text. `{}` is the name."""

    begin: str
    key: str
    close: str
    """Behind a value."""
    end: str


TAG_STYLES = {
    "qwen3_coder": TagStyle(
        begin="<tool_call>\n<function={}>\n",
        key="<parameter={}>\n",
        close="</parameter>",
        end="\n</function>\n</tool_call>",
    ),
    "glm": TagStyle(
        begin="<tool_call>{}\n",
        key="<arg_key>{}</arg_key>\n<arg_value>",
        close="</arg_value>",
        end="\n</tool_call>",
    ),
}

MAX_REFERENCES = 32
"""References behind one another that are followed to find out a value's type."""


def forced_calls(writer: Writer, tools: Sequence[Tool], formats: Formats, *, parallel: bool) -> str:
    """A rule for one call, or one and more, of the tools. UnsupportedOption where the format's calls cannot be forced."""
    envelope = formats.call_envelope()
    if envelope is not None:
        call = _enveloped(writer, tools, envelope)
        several = envelope.style == "named" or bool(envelope.separator)
        between = writer.text(envelope.separator) if envelope.style == "json" else "GAP?"
    elif formats.tools in TAG_STYLES:
        call = _tagged(writer, tools, TAG_STYLES[formats.tools])
        several, between = True, "GAP?"
    else:
        raise UnsupportedOption(
            f"this model cannot be made to call a tool: its tool format is {formats.tools!r}",
            cause="a forced `tool_choice` needs a format whose calls have a frame that a grammar can hold",
            hint='use tool_choice "auto" and check the answer in the reward, or set ModelConfig.tool_parser',
        )
    if not (parallel and several):
        return call
    return writer.rule("calls", f"{call} ({between} {call})*")


def possible_calls(writer: Writer, tools: Sequence[Tool], formats: Formats, *, parallel: bool) -> str:
    """As `forced_calls`; in a format whose calls cannot be forced, whatever the model writes behind a call's mark."""
    if formats.call_envelope() is not None or formats.tools in TAG_STYLES:
        return forced_calls(writer, tools, formats, parallel=parallel)
    marks = " | ".join(writer.text(mark) for mark in formats.call_marks())
    # The rest of a call may hold further marks of the format, which are no text.
    rest = " | ".join(part for part in (FREE, writer.any_mark()) if part)
    return writer.rule("calls", f"({marks}) ({rest})*")


def _enveloped(writer: Writer, tools: Sequence[Tool], envelope: CallEnvelope) -> str:
    begin, end = writer.text(envelope.begin), writer.text(envelope.end)
    bodies = []
    for number, tool in enumerate(tools):
        arguments = writer.json(arguments_schema(tool), f"arguments_{number}")
        body = _body(writer, tool.function.name, arguments, envelope)
        bodies.append(writer.rule(f"tool_{number}", body))
    return writer.rule("call", f"{begin} ({' | '.join(bodies)}) {end}")


def _body(writer: Writer, name: str, arguments: str, envelope: CallEnvelope) -> str:
    if envelope.style == "named":
        return f"{json.dumps(name)} {writer.text(envelope.separator)} {arguments}"
    keys = [json.dumps(json.dumps(key)) for key in ("name", envelope.arguments)]
    value = json.dumps(json.dumps(name, ensure_ascii=False))
    return f'"{{" WS? {keys[0]} WS? ":" WS? {value} WS? "," WS? {keys[1]} WS? ":" WS? {arguments} WS? "}}"'


def _tagged(writer: Writer, tools: Sequence[Tool], style: TagStyle) -> str:
    """Arguments in the order of the schema, the required ones always."""
    bodies = []
    for number, tool in enumerate(tools):
        schema = arguments_schema(tool)
        required = schema.get("required") or ()
        properties = schema.get("properties")
        parts = [writer.text(style.begin.format(tool.function.name))]
        for at, (key, value) in enumerate((properties if isinstance(properties, dict) else {}).items()):
            written = _value(writer, _described(value, schema), style.close, f"value_{number}_{at}")
            part = f"GAP? {writer.text(style.key.format(key))} {written}"
            parts.append(part if key in required else f"({part})?")
        bodies.append(writer.rule(f"tool_{number}", f"{' '.join(parts)} {writer.text(style.end)}"))
    return writer.rule("call", " | ".join(bodies))


def _value(writer: Writer, schema: Mapping[str, Any], close: str, name: str) -> str:
    """A bare value and its closing tag: text where the parser reads text, else JSON."""
    kinds = kinds_of(schema) or frozenset({"object", "array"} if "$ref" in schema else {"string"})
    if "string" not in kinds:
        return f"{writer.json(schema, name)} GAP? {writer.text(close)}"
    options = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(options, list) and options and all(isinstance(item, str) and item for item in options):
        texts = " | ".join(json.dumps(item) for item in options)
        return f"({texts}) GAP? {writer.text(close)}"
    return writer.until(close)


def _described(schema: object, root: Mapping[str, Any]) -> dict[str, Any]:
    """A property's schema by itself: a reference at its top is followed, the definitions it may use come along."""
    found = schema if isinstance(schema, dict) else {}
    for _ in range(MAX_REFERENCES):
        kind, _, name = str(found.get("$ref", "")).removeprefix("#/").partition("/")
        target = root.get(kind) if kind in ("$defs", "definitions") else None
        if not isinstance(target, dict) or not isinstance(target.get(name), dict):
            break
        found = target[name]
    shared = {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}
    return {**shared, **found}
