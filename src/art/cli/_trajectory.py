"""A rollout with everything that was said in it, as lines of text."""

from __future__ import annotations

from art.cli._text import coloured, is_terminal, moment, number, reward, span, styled
from art.types.wire_views import (
    CallChoice,
    CallNode,
    GroupLine,
    Message,
    RolloutLine,
    ScenarioDetail,
    TrajectoryDetail,
)
from art.utils.visible import clean

MANY_LINES = 24
"""Of one text on a terminal; past it the rest is counted instead of shown, unless --full."""
INDENT = "   "
ROLES = {"system": "magenta", "user": "cyan", "tool": "yellow", "assistant": "green"}


def lines(told: TrajectoryDetail, *, full: bool) -> list[str]:
    """For a person."""
    out = head(told.rollout)
    out += [f"  agent {clean(label)}: reward {reward(value)}" for label, value in told.agent_rewards.items()]
    if told.rollout.metrics:
        figures = ", ".join(f"{clean(name)} {number(value)}" for name, value in told.rollout.metrics.items())
        out.append(f"  {figures}")
    out += [f"  {clean(name)}: {clean(str(value))}" for name, value in told.metadata.items()]
    if told.upstream_calls:
        out.append(f"  calls to other models, passed on and never trained: {told.upstream_calls}")
    if told.next:
        out.append(f"  waits for {told.next}")
    if told.note.flag or told.note.note:
        out.append(f"  flagged {told.note.flag or 'nothing'}: {clean(told.note.note)}")
    if told.explanation:
        out += ["", styled("  judge", bold=True), *text_lines(told.explanation, "  ", full=full)]
    for call in told.calls:
        out += ["", *_call(call, full=full)]
    for log in told.logs:
        out += ["", styled("log", bold=True), *text_lines(log, INDENT, full=full)]
    return out


def head(rollout: RolloutLine) -> list[str]:
    """Which rollout it is, and what became of it."""
    why = f" ({clean(rollout.reason)})" if rollout.reason else ""
    advantage = "" if rollout.advantage is None else f", advantage {rollout.advantage:+.3f}"
    worth = "no reward" if rollout.reward is None else f"reward {reward(rollout.reward)}{advantage}"
    model = f"{rollout.project}/{rollout.model}@{rollout.step}"
    first = f"{styled(clean(rollout.rollout_id), bold=True)}  {model}  {rollout.purpose.value}"
    out = [f"{first}  {coloured(rollout.status.value)}{why}  {worth}"]
    tools = f", {many(rollout.tool_calls, 'tool call')}" if rollout.tool_calls else ""
    failed = f" ({rollout.tool_errors} failed)" if rollout.tool_errors else ""
    took = "" if rollout.seconds is None else f", {span(rollout.seconds)}"
    out.append(
        f"  {moment(rollout.created_at)}{took}; {many(rollout.calls, 'call')}, {rollout.sampled_tokens:,} tokens"
        f" sampled, longest prompt {rollout.prompt_tokens:,}{tools}{failed}"
    )
    place = [f"scenario {scenario_name(rollout)}"] if rollout.scenario_id else []
    place += [f"group {clean(rollout.group_id)}, member {rollout.member}"] if rollout.group_id else []
    return [*out, *([f"  {'; '.join(place)}"] if place else [])]


def scenario_name(told: RolloutLine | GroupLine | ScenarioDetail) -> str:
    """Its id; before one that is a digest, what it asks."""
    identity = clean(told.scenario_id or "")
    return f"“{clean(told.scenario_label)}” ({identity})" if told.scenario_label else identity


def _call(call: CallNode, *, full: bool) -> list[str]:
    start = "" if call.parent is None else f" after #{call.parent}"
    branch = f"  branch {call.branch}" if call.branch else ""
    agent = f"  agent {clean(call.agent)}" if call.agent else ""
    side = f"  on the side: {clean(call.auxiliary_reason)}" if call.auxiliary else ""
    took = "" if call.seconds is None else f"  {span(call.seconds)}"
    title = f"#{call.number}{start}{branch}{agent}  {call.dialect}  {call.version}{took}{side}"
    memory = f", {call.reused_tokens:,} from memory" if call.reused_tokens else ""
    tools = f", tools: {', '.join(map(clean, call.tools))}" if call.tools else ""
    out = [styled(title, bold=True), f"{INDENT}prompt {call.prompt_tokens:,} tokens{memory}{tools}"]
    out += [f"{INDENT}overruled: {clean(one)}" for one in call.overrides]
    if call.withheld:
        out.append(f"{INDENT}not shown: {clean(call.withheld)}")
    for message in call.tail:
        out += said(message, full=full)
    for choice in call.choices:
        out += _choice(choice, several=len(call.choices) > 1, full=full)
    return out


def _choice(choice: CallChoice, *, several: bool, full: bool) -> list[str]:
    name = f"choice {choice.index}: " if several else ""
    fate = coloured(choice.fate)
    if choice.trained_step is not None:
        fate += f" into step {choice.trained_step}, {choice.trained_tokens:,} tokens"
    if choice.reward is not None:
        fate += f", reward {reward(choice.reward)}" + (
            f" (the {choice.reward_of}'s)" if choice.reward_of else ""
        )
    if choice.advantage is not None:
        fate += f", advantage {choice.advantage:+.3f}"
    why = f": {clean(choice.reason)}" if choice.reason else ""
    return [
        *said(choice.message, full=full),
        f"{INDENT}{name}{choice.token_count:,} tokens, {choice.finish_reason}  ->  {fate}{why}",
    ]


def said(message: Message, *, full: bool) -> list[str]:
    """One message: who, then reasoning, text, and tool calls."""
    name = f" {clean(message.name)}" if message.name else ""
    failed = styled("  error", fg="red") if message.error else ""
    out = [f"{INDENT}{styled(clean(message.role) + name, fg=ROLES.get(message.role))}{failed}"]
    inside = INDENT * 2
    if message.reasoning:
        out += text_lines(message.reasoning, f"{inside}| ", full=full, dim=True)
    if message.text:
        out += text_lines(message.text, inside, full=full)
    for call in message.tool_calls:
        told = f"{call.get('name', '?')}({call.get('arguments', '')})"
        out += text_lines(f"→ {told}", inside, full=full)
    return out


def text_lines(text: str, start: str, *, full: bool, dim: bool = False) -> list[str]:
    """A text line by line behind `start`; on a terminal its beginning, unless it is wanted in full."""
    found = clean(text, lines=True).split("\n")
    kept = found[:MANY_LINES] if is_terminal() and not full and len(found) > MANY_LINES + 1 else found
    out = [styled(f"{start}{line}", dim=dim) if dim else f"{start}{line}" for line in kept]
    if len(kept) < len(found):
        out.append(f"{start}… {len(found) - len(kept):,} more lines (--full)")
    return out


def many(count: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
