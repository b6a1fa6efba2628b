"""The lists of the read API as columns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from art.cli._text import MISSING, Column, moment, reward, short, span, spark
from art.types.wire import CheckpointList
from art.types.wire_views import GroupList, RolloutList, RunList, ScenarioList, StepList

Rows = list[Sequence[str]]
Lists = RunList | StepList | GroupList | RolloutList | ScenarioList | CheckpointList


def entries(found: Lists) -> list[Any]:
    """What a list holds: in every list of the contract they are its first field."""
    entries_: list[Any] = next(value for _, value in found)
    assert isinstance(entries_, list)
    return entries_


def of(found: Lists) -> tuple[list[Column], Rows]:
    """Columns and rows of any of them."""
    match found:
        case RunList():
            return runs(found)
        case StepList():
            return steps(found)
        case GroupList():
            return groups(found)
        case RolloutList():
            return rollouts(found)
        case ScenarioList():
            return scenarios(found)
        case CheckpointList():
            return checkpoints(found)


def columns(text: str) -> list[Column]:
    """`"run step> preview~"`: `>` stands to the right, `~` gives way on a narrow terminal."""
    return [
        Column(word.rstrip(">~"), "right" if word.endswith(">") else "left", stretch=word.endswith("~"))
        for word in text.split()
    ]


def ago(seconds: float) -> str:
    """How long ago a moment was."""
    return span(max(0.0, time.time() - seconds))


def runs(found: RunList) -> tuple[list[Column], Rows]:
    """Runs: where they stand, and whether they learn."""
    rows: Rows = [
        (
            f"{run.project}/{run.name}",
            run.state,
            str(run.step),
            f"{reward(run.reward_first)} → {reward(run.reward_last)}",
            reward(run.val_reward_last),
            f"{run.rollouts:,}",
            short(run.sampled_tokens),
            MISSING if run.cost_usd is None else f"{run.cost_usd:.2f}",
            ago(run.updated_at),
            spark(run.rewards[-20:]),
        )
        for run in found.runs
    ]
    return columns("run state step> reward val> rollouts> tokens> usd> updated> trend"), rows


def steps(found: StepList) -> tuple[list[Column], Rows]:
    """Train calls."""
    rows: Rows = [
        (
            str(step.batch),
            str(step.step) if step.published else MISSING,
            moment(step.time),
            span(step.seconds),
            f"{step.groups:,}",
            f"{step.rollouts:,}",
            reward(step.reward),
            reward(step.reward_std_dev),
            "; ".join([step.reason, *(f"warning: {name}" for name in step.warnings)]).strip("; "),
        )
        for step in found.steps
    ]
    return columns("batch> step> time took> groups> rollouts> reward> std> note~"), rows


def groups(found: GroupList) -> tuple[list[Column], Rows]:
    """Groups and the spread of their rewards."""
    rows: Rows = [
        (
            group.group_id,
            str(group.step),
            group.scenario_label or group.scenario_id or MISSING,
            str(group.size),
            reward(group.reward_mean),
            f"{reward(group.reward_min)} to {reward(group.reward_max)}",
            ", ".join(f"{count} {status}" for status, count in sorted(group.statuses.items())),
            group.preview,
        )
        for group in found.groups
    ]
    return columns("group step> scenario~ size> reward> spread statuses~ asked~"), rows


def rollouts(found: RolloutList) -> tuple[list[Column], Rows]:
    """Rollouts."""
    rows: Rows = [
        (
            one.rollout_id,
            str(one.step),
            one.status.value,
            reward(one.reward),
            "" if one.advantage is None else f"{one.advantage:+.3f}",
            str(one.calls),
            f"{one.sampled_tokens:,}",
            f"{one.tool_calls}" + (f" ({one.tool_errors} failed)" if one.tool_errors else ""),
            span(one.seconds),
            one.flag or "",
            one.scenario_label or one.scenario_id or "",
            one.reason or one.preview,
        )
        for one in found.rollouts
    ]
    return columns("rollout step> status reward> adv> calls> tokens> tools took> flag scenario~ said~"), rows


def scenarios(found: ScenarioList) -> tuple[list[Column], Rows]:
    """Scenarios: before and after."""
    rows: Rows = [
        (
            one.scenario_id,
            f"{one.rollouts:,}",
            f"{one.first_step} to {one.last_step}",
            reward(one.reward_first),
            reward(one.reward_last),
            _change(one.reward_first, one.reward_last),
            one.preview,
        )
        for one in found.scenarios
    ]
    return columns("scenario~ rollouts> steps first> last> change> asked~"), rows


def checkpoints(found: CheckpointList) -> tuple[list[Column], Rows]:
    """Published steps."""
    rows: Rows = [
        (
            str(one.step),
            moment(one.created_at),
            MISSING if one.parent_step is None else str(one.parent_step),
            reward(one.metrics.get("train/reward", one.metrics.get("reward"))),
            one.path,
        )
        for one in found.checkpoints
    ]
    return columns("step> time parent> reward> path"), rows


def _change(first: float | None, last: float | None) -> str:
    return "" if first is None or last is None else f"{last - first:+.3f}"
