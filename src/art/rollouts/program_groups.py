"""A program run in groups: each scenario several times, so that its runs can be compared with one another."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from art.errors import ArtError, InvalidInput, ServerUnreachable
from art.rollouts.command import Program, Run, run_program
from art.rollouts.failure import is_infrastructure
from art.rollouts.fit import scenario_id
from art.rollouts.gather import gather_trajectory_groups
from art.trajectories import Trajectory, TrajectoryGroup
from art.types.policy import Purpose, RolloutStatus

if TYPE_CHECKING:
    from art.model import TrainableModel

OnOutput = Callable[[str, bytes], None]
"""(which run, a piece of what it printed)."""


@dataclass
class ScenarioRuns:
    """All runs of one scenario."""

    scenario: Any
    scenario_id: str
    label: str
    """Its own id, or its number in the file: what a person sees."""
    runs: list[Run] = field(default_factory=list)
    """In the order in which they ended."""
    lost: list[ArtError] = field(default_factory=list)
    """Runs that a failure of ART itself ended."""
    group: TrajectoryGroup | None = None

    @property
    def rewards(self) -> list[float]:
        """Of the runs that have one."""
        return [run.reward for run in self.runs if run.reward is not None]

    def summary(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "scenario_id": self.scenario_id,
            "rewards": self.rewards,
            "statuses": self.statuses(),
            "runs": [run.summary() for run in self.runs],
            "lost": [error.to_dict() for error in self.lost],
        }

    def statuses(self) -> dict[str, int]:
        """How many runs ended how; a run that could not be judged counts as `no_reward`."""
        names = [
            "no_reward"
            if run.error is not None and run.status is RolloutStatus.FINISHED
            else run.status.value
            for run in self.runs
        ]
        names += ["infra_error"] * len(self.lost)
        return {name: names.count(name) for name in dict.fromkeys(names)}

    def line(self) -> str:
        """One line for a person."""
        rewards = self.rewards
        worth = "no rewards"
        if rewards:
            sources = ", ".join(dict.fromkeys(run.source for run in self.runs if run.source))
            worth = f"reward {fmean(rewards):.3g} ({min(rewards):g} to {max(rewards):g}, {sources})"
        ends = ", ".join(f"{count} {name}" for name, count in self.statuses().items())
        return f"{self.label}: {worth}; {ends}"


def read_scenarios(file: Path) -> list[Any]:
    """One JSON value a line; empty lines are passed over. InvalidInput names the line that is none."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # JSON may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the scenarios {file} cannot be read", cause=str(error)) from error
    scenarios = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            scenario = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                f"{file}, line {number} is no JSON",
                cause=str(error),
                hint="one scenario a line: an object, or a text in quotes",
            ) from error
        if scenario is None:
            raise InvalidInput(f"{file}, line {number} is null, which is no scenario")
        scenarios.append(scenario)
    if not scenarios:
        raise InvalidInput(f"{file} holds no scenario", hint="one JSON value a line")
    return scenarios


@dataclass(frozen=True, kw_only=True)
class GroupRunner:
    """Runs a program on scenarios, `size` times each."""

    model: TrainableModel[Any, Any]
    program: Program
    size: int
    concurrency: int
    seed: int
    purpose: Purpose = Purpose.TRAIN
    step: int | None = None
    on_output: OnOutput | None = None
    gone: list[ArtError] = field(default_factory=list)
    """That the server is not there any more: the runs that have not begun are lost too."""

    async def run(
        self, scenarios: Sequence[Any], *, on_group: Callable[[ScenarioRuns], None] | None = None
    ) -> list[ScenarioRuns]:
        """All groups, in the order of their scenarios; `on_group` is told of each as soon as it is complete.

        A run that ends badly ends no other. Cancelling ends all programs.
        """
        batch = uuid.uuid4().hex[:8]
        results = [
            ScenarioRuns(scenario, scenario_id(scenario), _label(scenario, number))
            for number, scenario in enumerate(scenarios, 1)
        ]
        pending = [self._group(result, f"run-{batch}-{number}") for number, result in enumerate(results)]
        by_group = {f"run-{batch}-{number}": result for number, result in enumerate(results)}

        async def complete(group: TrajectoryGroup) -> TrajectoryGroup:
            result = by_group[str(group.metadata["group_id"])]
            result.group = group
            if on_group is not None:
                on_group(result)
            return group

        await gather_trajectory_groups(
            pending,
            pbar_desc="rollouts",
            max_exceptions=math.inf,
            max_concurrency=self.concurrency,
            after_each=complete,
        )
        return results

    def _group(self, result: ScenarioRuns, group_id: str) -> Awaitable[TrajectoryGroup]:
        members = [self._member(result, group_id, number) for number in range(self.size)]
        metadata: dict[str, Any] = {"scenario_id": result.scenario_id, "group_id": group_id}
        pending: Awaitable[TrajectoryGroup] = TrajectoryGroup(members, metadata=metadata)
        return pending

    async def _member(self, result: ScenarioRuns, group_id: str, number: int) -> Trajectory:
        label = f"{result.label}#{number}"
        on_output = self.on_output
        if self.gone:  # each run would wait for it as long again
            result.lost.append(self.gone[0])
            raise self.gone[0]
        try:
            run = await run_program(
                self.model,
                self.program,
                scenario=result.scenario,
                on_output=None if on_output is None else lambda part: on_output(label, part),
                purpose=self.purpose,
                scenario_id=result.scenario_id,
                group_id=group_id,
                member=number,
                run_seed=self.seed,
                step=self.step,
            )
        except ArtError as error:
            if not is_infrastructure(error):
                raise
            result.lost.append(error)
            if isinstance(error, ServerUnreachable):
                self.gone.append(error)
            raise
        result.runs.append(run)
        if run.trajectory is None:
            raise run.error or InvalidInput(f"{run.rollout_id} has no reward")
        return run.trajectory


def _label(scenario: Any, number: int) -> str:
    own = scenario.get("id") if isinstance(scenario, dict) else None
    return str(own) if isinstance(own, str | int) else f"scenario {number}"
