"""Anthropic's conversations, tools and tool choice -> the internal form. What a text model cannot take is refused by its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from art.errors import InvalidInput, UnsupportedOption
from art.types.messages import FunctionCall, Message, Role, Tool, ToolCall, ToolChoice

SIGNATURE_PREFIX = "art:"
"""Of the signatures that this server gives; others are from elsewhere and say nothing here."""
BETWEEN_BLOCKS = "\n"
"""Text blocks of system, user and tool results are separate texts; those of an answer are one."""

_Block = Mapping[str, Any]


def parse_conversation(system: object, data: object) -> list[Message]:
    """`system` and `messages` of a request. InvalidInput and UnsupportedOption name the block."""
    if not isinstance(data, list) or not data:
        raise InvalidInput("`messages` must be a list with at least one message")
    out: list[Message] = []
    if system is not None and system != []:
        out.append(_message("system", "system", content=_text(system, "system")))
    for number, item in enumerate(data):
        where = f"messages[{number}]"
        role = item.get("role") if isinstance(item, dict) else None
        if role not in ("user", "assistant", "system"):
            raise InvalidInput(f"`{where}.role` must be user, assistant or system, not {str(role)[:40]!r}")
        content = f"{where}.content"
        if role == "system":
            out.append(_message("system", where, content=_text(item.get("content"), content)))
        elif role == "user":
            out += _user(_blocks(item.get("content"), content), content)
        else:
            out.append(_assistant(_blocks(item.get("content"), content), content))
    if out[-1].role == "assistant":
        raise UnsupportedOption(
            "the last message is of role assistant",
            cause="a text that the answer must begin with is not supported",
            hint="end `messages` with a user message",
        )
    return out


def _user(blocks: Sequence[_Block], where: str) -> list[Message]:
    """Every tool result is a message of its own; the texts between them are the user's."""
    out: list[Message] = []
    texts: list[str] = []

    def said() -> None:
        if texts:
            out.append(_message("user", where, content=BETWEEN_BLOCKS.join(texts)))
            texts.clear()

    for number, block in enumerate(blocks):
        at = f"{where}[{number}]"
        if block["type"] == "text":
            texts.append(_string(block, "text", at))
        elif block["type"] == "tool_result":
            said()
            content = _result(block, at)
            out.append(_message("tool", at, content=content, tool_call_id=_string(block, "tool_use_id", at)))
        else:
            raise _refused(block, at)
    said()
    return out or [_message("user", where, content="")]


def _result(block: _Block, where: str) -> str:
    """What a tool gave. An error is one in words too: templates have no mark for it."""
    content = block.get("content")
    text = "" if content is None else _text(content, f"{where}.content")
    failed = block.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        raise InvalidInput(f"`{where}.is_error` must be true or false")
    if failed and not text.lstrip().lower().startswith("error"):
        return f"Error: {text}" if text else "Error"
    return text


def _assistant(blocks: Sequence[_Block], where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    names: list[str] = []
    calls: list[ToolCall] = []
    for number, block in enumerate(blocks):
        at, kind = f"{where}[{number}]", block["type"]
        if kind == "text":
            texts.append(_string(block, "text", at))
        elif kind == "thinking":
            thoughts.append(_string(block, "thinking", at))
            signature = block.get("signature")
            if isinstance(signature, str) and signature.startswith(SIGNATURE_PREFIX):
                names.append(signature)
        elif kind == "tool_use":
            calls.append(_call(block, at))
        elif kind != "redacted_thinking":  # reasoning that only Anthropic's own models can read
            raise _refused(block, at)
    message = _message(
        "assistant",
        where,
        content="".join(texts) if texts or not calls else None,
        reasoning="".join(thoughts) or None,
        tool_calls=tuple(calls),
    )
    # Blocks of several answers in one message are none of them: together their names match nothing.
    return message.model_copy(update={"recorded": " ".join(dict.fromkeys(names)) or None})


def _call(block: _Block, where: str) -> ToolCall:
    name, given = _string(block, "name", where), block.get("input")
    if not isinstance(given, dict):
        raise InvalidInput(f"`{where}.input` must be an object")
    try:
        function = FunctionCall.model_validate({"name": name, "arguments": given})
    except ValidationError as error:
        raise _invalid(where, error) from error
    return ToolCall(id=_string(block, "id", where), function=function)


def _blocks(content: object, where: str) -> list[_Block]:
    """Content as blocks; text is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidInput(f"`{where}` must be text or a list of blocks")
    for number, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise InvalidInput(f"`{where}[{number}]` must be an object with a `type`")
    return content


def _text(content: object, where: str) -> str:
    """Content that can be text alone."""
    texts: list[str] = []
    for number, block in enumerate(_blocks(content, where)):
        if block["type"] != "text":
            raise _refused(block, f"{where}[{number}]")
        texts.append(_string(block, "text", f"{where}[{number}]"))
    return BETWEEN_BLOCKS.join(texts)


def _string(block: _Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidInput(f"`{where}.{name}` must be text")
    return value


def _refused(block: _Block, where: str) -> UnsupportedOption:
    kind = str(block["type"])[:60]
    if kind in ("image", "document"):
        return UnsupportedOption(
            f"`{where}` is of type {kind!r}",
            cause="this model takes text only",
            hint="describe it in a text block, or use a model with vision elsewhere",
        )
    return UnsupportedOption(
        f"`{where}` is of type {kind!r}, which is not supported here",
        hint="possible are text, thinking and tool_use of the assistant, text and tool_result of the user",
    )


def _message(role: Role, where: str, **fields: Any) -> Message:
    try:
        return Message(role=role, **fields)
    except ValidationError as error:
        raise _invalid(where, error) from error


def _invalid(where: str, error: ValidationError) -> InvalidInput:
    reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
    return InvalidInput(f"`{where}` is not valid: {reason}")


# -- tools

_TOOL_FIELDS = frozenset({"type", "name", "description", "input_schema", "input_examples", "strict"})
_DROPPED = frozenset({"cache_control", "eager_input_streaming"})
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "defer_loading": (None, False),
    "allowed_callers": (None, ["direct"]),
}


def parse_tools(data: object) -> list[Tool]:
    """The tools of a request in the form that chat templates know. Tools that Anthropic runs itself are refused."""
    if data is None:
        return []
    if not isinstance(data, list):
        raise InvalidInput("`tools` must be a list")
    return [_tool(item, f"tools[{number}]") for number, item in enumerate(data)]


def _tool(item: object, where: str) -> Tool:
    if not isinstance(item, dict):
        raise InvalidInput(f"`{where}` must be an object")
    if item.get("type") not in (None, "custom"):
        raise UnsupportedOption(
            f"`{where}` is the tool {str(item['type'])[:60]!r}",
            cause="tools of this type are known to Anthropic's models or run on its servers",
            hint="describe it as a tool of your own, with a name and an input_schema",
        )
    for name, value in item.items():
        neutral = _NEUTRAL.get(name, ())
        if name not in _TOOL_FIELDS and name not in _DROPPED and value not in neutral:
            raise UnsupportedOption(f"`{where}.{name}` is not supported", hint=f"leave `{name}` out")
    function = {"name": _string(item, "name", where)}
    for name in ("description", "input_examples", "strict"):
        if item.get(name):
            function[name] = item[name]
    schema = item.get("input_schema")
    if not isinstance(schema, dict):
        raise InvalidInput(f"`{where}.input_schema` must be an object")
    try:
        return Tool.model_validate({"type": "function", "function": {**function, "parameters": schema}})
    except ValidationError as error:
        raise _invalid(where, error) from error


_MODES: dict[str, Any] = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}


def parse_tool_choice(data: object) -> tuple[ToolChoice, bool]:
    """Whether a tool must be called, and whether several may be."""
    if data is None:
        return ToolChoice(), True
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in _MODES:
        raise InvalidInput(f"`tool_choice.type` must be auto, any, tool or none, not {str(kind)[:40]!r}")
    several = data.get("disable_parallel_tool_use")
    if several is not None and not isinstance(several, bool):
        raise InvalidInput("`tool_choice.disable_parallel_tool_use` must be true or false")
    name = _string(data, "name", "tool_choice") if kind == "tool" else None
    return ToolChoice(_MODES[kind], name), not several


def check_tool_choice(choice: ToolChoice, tools: Sequence[Tool]) -> None:
    """InvalidInput where a call is demanded that no tool can be the answer to."""
    if choice.mode in ("required", "named") and not tools:
        raise InvalidInput("this `tool_choice` needs `tools`")
    if choice.mode == "named" and all(tool.function.name != choice.name for tool in tools):
        raise InvalidInput(f"`tool_choice.name` is {str(choice.name)[:80]!r}, which is none of the `tools`")
