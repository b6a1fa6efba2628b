"""Rollouts as spans after OpenTelemetry's semantic conventions for generative AI, version 1.41.0.

https://github.com/open-telemetry/semantic-conventions/tree/v1.41.0/docs/gen-ai: a rollout is an `invoke_agent` span, its
calls `chat` spans, its tool calls `execute_tool` spans. Content is opt-in, as the conventions say. What they have no name
for stands under `art.`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from art.integrations.seen import CallSeen, RolloutBatch, RolloutSeen, ToolSeen
from art.integrations.tracker import RunInfo
from art.types.policy import RolloutStatus

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
PROVIDER = "art"
REWARD = "reward"
"""Name of the evaluation that a reward is."""
FAILED = frozenset({RolloutStatus.AGENT_ERROR.value, RolloutStatus.INFRA_ERROR.value})

Value: TypeAlias = str | bool | int | float | list[str]


@dataclass(frozen=True, kw_only=True)
class SpanSeen:
    """A span as data."""

    name: str
    kind: Literal["client", "internal"]
    started: float
    ended: float
    """Seconds since 1970."""
    attributes: dict[str, Value]
    score: float | None = None
    """Of a `gen_ai.evaluation.result` event at its end."""
    failed: bool = False
    children: tuple[SpanSeen, ...] = ()


def span_of(rollout: RolloutSeen, batch: RolloutBatch, run: RunInfo) -> SpanSeen:
    """The rollout's span, with those of its calls and tools inside."""
    model = f"{run.project}/{run.name}"
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.agent.name": run.name,
        "gen_ai.conversation.id": rollout.rollout_id,
        "gen_ai.request.model": model,
        "art.project": run.project,
        "art.step": batch.step,
        "art.split": batch.split,
        "art.group": rollout.group,
        "art.member": rollout.member,
        "art.scenario_id": rollout.scenario_id,
        "art.status": rollout.status,
        "art.reward": rollout.reward,
        **{f"art.metric.{name}": value for name, value in rollout.metrics.items()},
        **{f"art.metadata.{name}": _plain(value) for name, value in rollout.metadata.items()},
    }
    failed = rollout.status in FAILED
    if failed:
        attributes["error.type"] = rollout.status
    children = tuple(span for call in rollout.calls for span in _call(call, rollout, model))
    return SpanSeen(
        name=f"invoke_agent {run.name}",
        kind="internal",
        started=min([rollout.started, *(child.started for child in children)]),
        ended=max([rollout.ended, *(child.ended for child in children)]),
        attributes=_known(attributes),
        score=rollout.reward,
        failed=failed,
        children=children,
    )


def _call(call: CallSeen, rollout: RolloutSeen, model: str) -> Iterator[SpanSeen]:
    name = call.model or model
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.conversation.id": rollout.rollout_id,
        "gen_ai.request.model": name,
        "gen_ai.response.model": call.version,
        "gen_ai.response.id": call.call_id,
        "gen_ai.response.finish_reasons": [reason for reason in call.finish_reasons if reason],
        "gen_ai.usage.input_tokens": call.input_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
        "gen_ai.request.temperature": call.temperature,
        "gen_ai.request.top_p": call.top_p,
        "gen_ai.request.max_tokens": call.max_tokens,
        "gen_ai.request.seed": call.seed,
        "gen_ai.agent.name": call.agent,
        "art.fate": call.fate,
        "art.auxiliary": call.auxiliary,
    }
    if call.input:
        attributes["gen_ai.input.messages"] = json.dumps(messages(call.input), ensure_ascii=False)
    if call.output is not None:
        reason = call.finish_reasons[0] if call.finish_reasons else ""
        said = [{**one, "finish_reason": reason} for one in messages([call.output])]
        attributes["gen_ai.output.messages"] = json.dumps(said, ensure_ascii=False)
    yield SpanSeen(
        name=f"chat {name}",
        kind="client",
        started=call.started,
        ended=call.ended,
        attributes=_known(attributes),
    )
    yield from (_tool(tool, rollout) for tool in call.tools)


def _tool(tool: ToolSeen, rollout: RolloutSeen) -> SpanSeen:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.conversation.id": rollout.rollout_id,
        "gen_ai.tool.name": tool.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": tool.tool_call_id,
        "gen_ai.tool.call.arguments": tool.arguments,
        "gen_ai.tool.call.result": tool.result,
    }
    return SpanSeen(
        name=f"execute_tool {tool.name}",
        kind="internal",
        started=tool.started,
        ended=tool.ended,
        attributes=_known(attributes),
    )


def messages(said: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Chat messages in the conventions' form: a role, and parts."""
    return [{"role": str(message.get("role", "user")), "parts": list(_parts(message))} for message in said]


def _parts(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    if message.get("role") == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        yield {"type": "reasoning", "content": reasoning}
    if isinstance(content, str) and content:
        yield {"type": "text", "content": content}
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if isinstance(part, Mapping) else None
        yield {"type": "text", "content": text} if text is not None else _other(part)
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments")
        yield {
            "type": "tool_call",
            "id": call.get("id"),
            "name": function.get("name") or "",
            "arguments": _read(arguments),
        }


def _other(part: Any) -> dict[str, Any]:
    """A part that is no text: its type alone, since images and sounds are large."""
    kind = part.get("type", "unknown") if isinstance(part, Mapping) else "unknown"
    return {"type": str(kind)}


def _read(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _plain(value: object) -> Value:
    return value if isinstance(value, str | bool | int | float) else json.dumps(value)


def _known(attributes: Mapping[str, Any]) -> dict[str, Value]:
    """Those that have a value."""
    return {name: value for name, value in attributes.items() if value not in (None, "", [])}
