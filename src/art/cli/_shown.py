"""A run, a step, a group and a scenario as lines of text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from art.cli._lists import columns
from art.cli._output import ShownStep
from art.cli._text import MISSING, counts, moment, number, reward, short, span, spark, styled, table
from art.cli._trajectory import said, scenario_name
from art.types.metrics import by_section, info
from art.types.wire_views import Divergence, GroupDetail, Member, RunDetail, ScenarioDetail
from art.utils.visible import clean

PUBLISHED = "checkpoint/created_at_unix"
"""The one figure whose seconds are a moment."""


def run(told: RunDetail, *, full: bool) -> list[str]:
    """Where a run stands: its figures, what became of its rollouts, its settings."""
    line = told.run
    out = [
        f"{styled(f'{line.project}/{line.name}', bold=True)}  {line.state}  step {line.step}, {line.batch} train calls",
        f"  on {clean(line.base_model)}; since {moment(line.created_at)}, last seen {moment(line.updated_at)}",
        f"  reward {reward(line.reward_first)} → {reward(line.reward_last)}  {spark(line.rewards)}".rstrip(),
        f"  {line.rollouts:,} rollouts, {line.running:,} running, {short(line.sampled_tokens)} tokens sampled",
        f"  rollouts: {counts(told.statuses)}",
        f"  sampled choices: {counts(told.fates)}",
    ]
    if line.val_reward_last is not None:
        out.insert(3, f"  evaluation {reward(line.val_reward_last)}")
    if line.cost_usd is not None:
        out.append(f"  cost {line.cost_usd:.2f} USD")
    out += [f"  note: {clean(note)}" for note in told.notes]
    if told.figures:
        rows = {
            one.name: (
                figure(one.name, one.last),
                str(one.last_step),
                str(one.count),
                one.state if one.state != "ok" else "",
            )
            for one in told.figures
        }
        out += ["", *_by_section("last> step> steps> state", rows)]
    if told.config:
        out += [
            "",
            *_settings(
                "", told.config if full else _chosen(told.config, told.config_origin), told.config_origin
            ),
        ]
        if not full and told.config.keys() & {"run", "train_call"}:
            out.append("  all others are the defaults; --full shows them too")
    return out


def _chosen(config: dict[str, object], origin: dict[str, str]) -> dict[str, object]:
    """Of the settings of an `art run` and of a train call those that somebody set; the others are all there is to know."""
    resolved, call = config.get("run"), config.get("train_call")
    if isinstance(call, dict):
        config = {**config, "train_call": _set_by_somebody(call, "train_call.", origin)}
    if not isinstance(resolved, dict):
        return config
    found = _set_by_somebody(resolved, "", origin)
    model = resolved.get("model")
    own = {
        name: value
        for name, value in config.items()
        if name != "run" and not (isinstance(model, dict) and model.get(name) == value)
    }
    return {**own, "run": found} if found else own


def _set_by_somebody(values: dict[str, object], prefix: str, origin: dict[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in values.items():
        place = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            if inner := _set_by_somebody(value, f"{place}.", origin):
                found[name] = inner
        elif origin.get(place, "default") != "default":
            found[name] = value
    return found


def _settings(prefix: str, values: object, origin: dict[str, str]) -> list[str]:
    """Dotted names and values, and who set those that an `art run` or a train call resolved."""
    if not isinstance(values, dict) or not values:
        resolved = prefix.startswith(("run.", "train_call."))
        who = origin.get(prefix.removeprefix("run."), "") if resolved else ""
        shown = json.dumps(values, ensure_ascii=False, default=str)
        return [
            f"  {clean(prefix)} = {clean(shown)}" + (f"  ({clean(who)})" if who and who != "default" else "")
        ]
    return [
        line
        for name, value in values.items()
        for line in _settings(f"{prefix}.{name}" if prefix else str(name), value, origin)
    ]


def step(told: ShownStep) -> list[str]:
    """A published step and the train call behind it."""
    out = [styled(told.model, bold=True)]
    checkpoint, line = told.checkpoint, told.step
    if checkpoint is not None:
        parent = "the first" if checkpoint.parent_step is None else f"after step {checkpoint.parent_step}"
        out.append(f"  published {moment(checkpoint.created_at)}, {parent}; {clean(checkpoint.path)}")
    else:
        out.append("  its checkpoint was deleted")
    if line is None:
        out.append("  it was not trained here: a starting point, or of a model that this one was forked from")
        return out
    took = "" if line.seconds is None else f" in {span(line.seconds)}"
    out += [
        f"  train call {line.batch}{took}: {line.groups:,} groups, {line.rollouts:,} rollouts; {counts(line.statuses)}",
        f"  reward {reward(line.reward)}, spread {reward(line.reward_std_dev)}",
        *[styled(f"  warning: {clean(name)}", fg="yellow") for name in line.warnings],
    ]
    rows = {name: (figure(name, value),) for name, value in line.metrics.items()}
    return [*out, "", *_by_section("value>", rows)] if rows else out


def figure(name: str, value: float | None) -> str:
    """A metric with its unit: `12.5 %`, `3.4 s`, `1,024 tokens`; a reward has none."""
    known = info(name)
    unit = known.unit if known is not None else ""
    if value is None or not math.isfinite(value) or not unit:
        return number(value)
    if name == PUBLISHED:
        return moment(value)
    if unit == "1":
        return f"{number(100 * value)} %"
    return span(value) if unit == "s" else f"{number(value)} {unit}"


def _by_section(words: str, rows: Mapping[str, Sequence[str]]) -> list[str]:
    """A table of figures by name, each section under its title."""
    sections = by_section(rows)
    ordered = [name for names in sections.values() for name in names]
    head, *lines = table(columns(f"figure {words}"), [(f"  {name}", *rows[name]) for name in ordered])
    out = [head]
    for title, names in sections.items():
        out += [styled(clean(title), bold=True), *lines[: len(names)]]
        lines = lines[len(names) :]
    return out


def group(told: GroupDetail, *, full: bool) -> list[str]:
    """A group's rollouts, best first, and from where on they differ."""
    line = told.group
    out = [
        f"{styled(f'group {clean(line.group_id)}', bold=True)}  step {line.step}  {counts(line.statuses)}",
        f"  reward {reward(line.reward_mean)}, from {reward(line.reward_min)} to {reward(line.reward_max)},"
        f" spread {reward(line.reward_std_dev)}",
    ]
    if line.scenario_id:
        out.insert(1, f"  scenario {scenario_name(line)}")
    rows = [
        (
            one.rollout.rollout_id,
            one.rollout.status.value,
            reward(one.rollout.reward),
            MISSING if one.rollout.advantage is None else f"{one.rollout.advantage:+.3f}",
            str(one.rollout.calls),
            f"{one.rollout.sampled_tokens:,}",
            str(one.rollout.tool_errors),
            one.rollout.preview,
        )
        for one in told.members
    ]
    out += ["", *table(columns("rollout status reward> adv> calls> tokens> failed> said~"), rows)]
    if told.divergence is None:
        return [*out, "", "all of them say the same"] if len(told.members) > 1 else out
    return [*out, *_differ(told.members, told.divergence, full=full)]


def _differ(members: Sequence[Member], at: Divergence, *, full: bool) -> list[str]:
    """The message in which they first differ, of each."""
    out = ["", f"they differ from message {at.message + 1} on, character {at.character + 1}:"]
    for member in members:
        out.append(
            f"{styled(clean(member.rollout.rollout_id), bold=True)}  reward {reward(member.rollout.reward)}"
        )
        if at.message < len(member.messages):
            out += said(member.messages[at.message], full=full)
        else:
            out.append("   ended before")
    return out


def scenario(told: ScenarioDetail) -> list[str]:
    """A scenario over the steps."""
    rows = [
        (
            str(one.step),
            one.purpose.value,
            str(len(one.rollouts)),
            reward(one.reward_mean),
            ", ".join(reward(rollout.reward) for rollout in one.rollouts),
            one.rollouts[0].rollout_id if one.rollouts else "",
        )
        for one in told.steps
    ]
    title = styled(f"scenario {scenario_name(told)}", bold=True)
    return [title, "", *table(columns("step> purpose runs> reward> rewards~ first"), rows)]
