"""What a request asks of the answer's form: which tools may or must be called, which JSON schema its text follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from art.engine.protocol import EngineCapabilities
from art.errors import InvalidInput, UnsupportedOption
from art.server.off_loop import LARGE_BYTES, OffLoop
from art.server.versions import ModelEntry
from art.tokens.grammar import Form, grammar_for
from art.types.messages import Tool, ToolChoice


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools that the answer may call."""
    if choice.mode == "none":
        return []
    names = [choice.name] if choice.mode == "named" else choice.allowed
    return [tool for tool in tools if names is None or tool.function.name in names]


def form_of(
    tools: Sequence[Tool], choice: ToolChoice, schema: Mapping[str, Any] | None, parallel: bool
) -> Form:
    """What the answer must be. InvalidInput for a tool that is not offered, and for a call without tools."""
    offered = [tool.function.name for tool in tools]
    for name in [choice.name] if choice.mode == "named" else choice.allowed or ():
        if name not in offered:
            raise InvalidInput(
                f"`tool_choice` names {str(name)[:80]!r}, which is none of the `tools`",
                hint=f"the tools are: {', '.join(offered)[:200] or 'none'}",
            )
    must_call = choice.mode in ("required", "named")
    if must_call and not tools:
        raise InvalidInput(f"`tool_choice` {choice.mode!r} needs `tools`")
    return Form(
        schema=schema,
        tools=callable_tools(tools, choice),
        must_call=must_call,
        parallel=parallel and choice.mode != "named",
    )


async def grammar_of(
    off_loop: OffLoop, form: Form, entry: ModelEntry, prompt_token_ids: Sequence[int]
) -> str:
    """The grammar of the form, made beside the event loop. Errors as `grammar_for`; Overloaded when too many wait."""
    if form.free:
        return ""
    # However small the request, a schema may take long to compile.
    return await off_loop.run(LARGE_BYTES + 1, grammar_for, form, entry.formats, prompt_token_ids)


def asked_form(choice: ToolChoice, schema: Mapping[str, Any] | None) -> dict[str, object]:
    """What a call's record says about the form that was asked for; nothing where it was free."""
    asked: dict[str, object] = {}
    if choice.mode == "named":
        asked["tool_choice"] = choice.name
    elif choice.mode != "auto":
        asked["tool_choice"] = choice.mode
    if choice.allowed is not None:
        asked["allowed_tools"] = list(choice.allowed)
    if schema is not None:
        asked["response_schema"] = dict(schema)
    return asked


def check_engine(capabilities: EngineCapabilities) -> None:
    """UnsupportedOption where the engine follows no grammar."""
    if not capabilities.grammar:
        raise UnsupportedOption(
            f"the {capabilities.kind} engine cannot follow `response_format` and a forced `tool_choice`",
            cause="it has no grammar-constrained sampling for this model",
            hint='ask for the form in the prompt and check it in the reward; use tool_choice "auto"',
        )
