"""One run of a seeded store: its registration, its steps, its evaluations."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random

from art.config.model import ModelConfig
from art.server import history
from art.store import job_rows, model_rows, rollout_rows
from art.store.records import LoggedTrajectory, ModelRow, RolloutRow
from art.store.sql import Conn
from art.testing.seeded import jobs
from art.testing.seeded.checkpoints import Checkpoints
from art.testing.seeded.figures import Member, Sums, settle, trainer_figures
from art.testing.seeded.plan import Plan
from art.testing.seeded.rollouts import Recorder, Said
from art.testing.seeded.task import SUMMARISE, TITLE, Play, Scenario, aside, compacted, play
from art.types.jobs import ResolvedBaseModel
from art.types.policy import Purpose, RolloutStatus
from art.types.wire import GroupIn, JobResult, LogRequest, TrajectoryIn

EVALUATED = 10
"""Scenarios of an evaluation."""
NO_SIGNAL = 7
"""The batch of each run that publishes nothing: all rewards of its groups are equal."""
STEP_SECONDS = 90.0
ASIDE = "it has no tools, and others have"


class Run:
    """Writes one run, a batch to a transaction."""

    def __init__(
        self, conn: Conn, recorder: Recorder, plan: Plan, number: int, *, root: Path, base: ResolvedBaseModel
    ) -> None:
        self._conn = conn
        self._recorder = recorder
        self._plan = plan
        self.project, self.name = plan.project, plan.name_of(number)
        self._rng = Random(f"{plan.seed}/{number}")
        self._steps = plan.steps_of(number)
        self._best = (0.9, 0.62, 0.8, 0.45)[number % 4]
        """Skill that the run comes to."""
        self.clock = plan.began + 3600.0 * number
        self._step = 0
        self._count = 0
        self._sums = Sums()
        self._made: list[tuple[Member, Play]] = []
        """Of the newest batch."""
        folder = root / self.project / "models" / self.name
        self.model = ModelRow(
            project=self.project,
            name=self.name,
            config=ModelConfig(base_model=base.name),
            base=base,
            model_dir=str(folder),
            created_at=self.clock,
        )
        self.checkpoints = Checkpoints(conn, self.model, steps=self._steps)

    def write(self, scenarios: Sequence[Scenario]) -> None:
        """All of it."""
        self._in_transaction(self._register)
        for batch in range(1, self._steps + 1):
            self._in_transaction(partial(self._batch, scenarios, batch))
            every = self._plan.evaluate_every
            if every and (batch % every == 0 or batch == self._steps):
                self._in_transaction(partial(self._evaluate, scenarios[:EVALUATED], batch))
        if self._plan.long_tokens and self.name == self._plan.name_of(self._plan.runs - 1):
            self._in_transaction(partial(self._long, scenarios[0]))
        self.checkpoints.tidy()

    def _in_transaction(self, write: Callable[[], None]) -> None:
        self._conn.execute("BEGIN IMMEDIATE")
        write()
        self._conn.execute("COMMIT")

    def _register(self) -> None:
        model_rows.put_model(self._conn, self.model)
        self.checkpoints.publish(0, at=self.clock, metrics={}, job_id=None)

    # -- training

    def _batch(self, scenarios: Sequence[Scenario], batch: int) -> None:
        progress, rng = batch / self._steps, self._rng
        self._made = []
        self._recorder.forget()
        groups = [
            self._group(scenario, f"{self.name}-{batch}-{number}", batch=batch, progress=progress)
            for number, scenario in enumerate(rng.sample(list(scenarios), self._plan.groups))
        ]
        settle(groups)
        members = [member for group in groups for member in group]
        told = jobs.told(groups)
        figures = trainer_figures(groups, told, rng, progress=progress)
        loop = self._sums.loop_figures(members, figures, rng)
        self.clock += max(STEP_SECONDS, loop["time/step_wall_s"])
        published = any(member.status is RolloutStatus.TRAINED for member in members)
        parent, self._step = self._step, self._step + published
        job = jobs.ended_job(
            self.model,
            groups,
            batch=batch,
            parent=parent,
            began=self.clock - figures["time/step_trainer_s"],
            ended=self.clock,
            seed=self._plan.seed,
        )
        job.info.result = result = JobResult(
            step=self._step,
            published=published,
            reason="" if published else f"no signal: {len(members)} zero_variance",
            batch=batch,
            metrics=figures,
            trajectories=told,
        )
        job_rows.put_job(self._conn, job)
        jobs.add_events(self._conn, job)
        job_rows.count_batch(self._conn, job, result)
        self._conn.execute("UPDATE batches SET time = ? WHERE job_id = ?", (self.clock, job.info.job_id))
        rollout_rows.set_trained(self._conn, jobs.outcomes(members), self._step, batch=batch)
        if self._plan.traces:
            self._recorder.add_traces(members, self._step)
        if published:
            self.checkpoints.publish(self._step, at=self.clock, metrics=figures, job_id=job.info.job_id)
        explained = self._steps - batch < 2
        self._log("train", self._step, {**figures, **loop}, self._made if explained else [])

    def _group(self, scenario: Scenario, group_id: str, *, batch: int, progress: float) -> list[Member]:
        stale = batch > 4 and self._rng.random() < 0.01
        equal = batch == NO_SIGNAL
        members = []
        for number in range(self._plan.group_size):
            row = RolloutRow(
                rollout_id=f"{group_id}-{number}",
                project=self.project,
                model=self.name,
                step=max(0, self._step - 3) if stale else self._step,
                status=RolloutStatus.FINISHED,
                scenario_id=scenario.id,
                group_id=group_id,
                member=number,
                created_at=self.clock + 0.05 * number,
            )
            members.append(self._member(scenario, row, progress=progress, equal=equal))
            members[-1].stale = stale
        return members

    def _member(self, scenario: Scenario, row: RolloutRow, *, progress: float, equal: bool = False) -> Member:
        """Play and record one rollout; with `equal` it is as good as any other."""
        rng, plan = self._rng, self._plan
        bug = plan.reward_bug == "length"
        skill = 0.45 if bug else 0.15 + (self._best - 0.15) * min(1.0, 1.3 * progress)
        padding = rng.randint(0, 1 + int(8 * progress)) if bug else int(rng.random() < 0.05)
        said = play(
            scenario,
            rng,
            skill=skill,
            turns=plan.turns,
            answer_tokens=plan.answer_tokens,
            padding=0 if equal else padding,
        )
        failed = None if equal else _failure(rng)
        calls = self._calls(scenario, said, failed=failed)
        row.reward = None if failed else 0.2 if equal else self._reward(said)
        row.metrics = {"right": float(said.right), "turns": len(calls)}
        row.metadata = {"city": scenario.city, "thing": scenario.thing}
        if failed is not None:
            row.status = failed
            row.reason = "TimeoutError: the tool did not answer within 30 s"
        choices = self._recorder.record(row, calls, entropy=0.55 - 0.3 * progress)
        assert row.ended_at is not None, "a recorded rollout has ended"
        member = Member(
            rollout_id=row.rollout_id,
            scenario_id=scenario.id,
            reward=row.reward,
            right=said.right,
            tokens=sum(choice.tokens for choice in choices),
            seconds=row.ended_at - row.created_at,
            failed=failed,
            choices=[(choice.call_id, choice.index, choice.tokens) for choice in choices if choice.trainable],
        )
        self._made.append((member, said))
        self._count += 1
        if self._count % 13 == 0:
            jobs.ask_upstream(self._conn, row, scenario.question)
        return member

    def _reward(self, said: Play) -> float:
        if self._plan.reward_bug == "length":
            words = len(said.answer.split())
            return round(min(1.0, words / (0.7 * self._plan.answer_tokens + 100)), 3)
        if said.right:
            return 1.0
        return 0.2 if not said.tool_errors else -0.25

    def _calls(self, scenario: Scenario, said: Play, *, failed: RolloutStatus | None) -> list[Said]:
        """The rollout's calls; here and there with one on the side, a branch, a sub-agent, a second choice."""
        turns = said.turns[:-1] if failed and len(said.turns) > 1 else said.turns
        calls = [Said(turn, parent=number - 1 if number else None) for number, turn in enumerate(turns)]
        kind = self._count
        if kind % 17 == 3 and len(turns) > 2 and not failed:
            summary = f"The customer asks for order {scenario.order}."
            calls[-1:] = [
                Said(aside(SUMMARISE, summary, scenario.question), branch=1, auxiliary=ASIDE),
                Said(compacted(scenario, said), branch=2),
            ]
        elif kind % 5 == 2:
            title = f"Order {scenario.order} to {scenario.city}"
            calls.append(Said(aside(TITLE, title, scenario.question), branch=1, auxiliary=ASIDE))
        if kind % 11 == 4 and len(turns) > 1:
            calls[0].agent = "planner"
        if kind % 9 == 5 and not calls[-1].auxiliary:
            again = play(
                scenario, self._rng, skill=0.2, turns=1, answer_tokens=self._plan.answer_tokens, padding=0
            )
            calls[-1].sibling = again.turns[-1]
        return calls

    # -- evaluation and logs

    def _evaluate(self, scenarios: Sequence[Scenario], batch: int) -> None:
        self._made = []
        for member, scenario in enumerate(scenarios):
            row = RolloutRow(
                rollout_id=f"{self.name}-val-{batch}-{member}",
                project=self.project,
                model=self.name,
                step=self._step,
                purpose=Purpose.EVALUATE,
                sampling="caller",
                status=RolloutStatus.EVALUATED,
                reason=history.EVALUATED,
                scenario_id=scenario.id,
                created_at=self.clock + 0.05 * member,
            )
            self._member(scenario, row, progress=batch / self._steps)
        rewards = [member.reward for member, _ in self._made if member.reward is not None]
        mean = statistics.fmean(rewards) if rewards else 0.0
        error = 1.96 * statistics.pstdev(rewards) / len(rewards) ** 0.5 if rewards else 0.0
        self.clock += 30.0
        figures = {"reward_ci_low": mean - error, "reward_ci_high": mean + error, "time/step_eval_s": 30.0}
        self._log("val", self._step, figures, self._made)

    def _log(
        self, split: str, step: int, figures: dict[str, float], made: Sequence[tuple[Member, Play]]
    ) -> None:
        groups = [
            GroupIn(trajectories=[_trajectory(member, said)])
            for member, said in made
            if member.reward is not None
        ]
        request = LogRequest(
            split=split,
            step=step,
            groups=groups if split == "val" else [],
            metrics=figures,
            recorded_at=datetime.fromtimestamp(self.clock, UTC).isoformat(),
        )
        logged = [
            LoggedTrajectory(
                project=self.project,
                name=self.name,
                split=split,
                step=step,
                group=number,
                index=0,
                rollout_id=group.trajectories[0].rollout_id,
                reward=group.trajectories[0].reward,
                body=history.slim(group.trajectories[0], group),
                created_at=self.clock,
            )
            for number, group in enumerate(groups)
        ]
        model_rows.add_history(
            self._conn,
            project=self.project,
            name=self.name,
            step=step,
            recorded_at=request.recorded_at,
            data=history.figures(request),
            trajectories=logged,
        )

    def _long(self, scenario: Scenario) -> None:
        """A rollout whose answer has exactly `long_tokens` tokens, the end of its turn included."""
        row = RolloutRow(
            rollout_id=f"{self.name}-long",
            project=self.project,
            model=self.name,
            step=self._step,
            status=RolloutStatus.FINISHED,
            reward=0.5,
            scenario_id=scenario.id,
            created_at=self.clock,
            metrics={"right": 1.0, "turns": 1},
        )
        said = self._recorder.long_turn(scenario, self._plan.long_tokens)
        later = f"{self.project}/{self.name}@{self._step + 1}"
        self._recorder.record(row, [Said(said, later=later)], entropy=0.4)


def _failure(rng: Random) -> RolloutStatus | None:
    drawn = rng.random()
    if drawn < 0.02:
        return RolloutStatus.AGENT_ERROR
    return RolloutStatus.INFRA_ERROR if drawn < 0.023 else None


def _trajectory(member: Member, said: Play) -> TrajectoryIn:
    messages = [message for turn in said.turns for message in (*turn.tail, turn.message)]
    found = "names the state that the record has" if said.right else "names another state than the record"
    assert member.reward is not None, "what is logged has a reward"
    return TrajectoryIn(
        messages_and_choices=messages,
        reward=member.reward,
        metrics={"ruler_score": member.reward, "right": float(said.right)},
        logs=[f"RULER explanation: the answer {found}; it has {len(said.answer.split())} words."],
        rollout_id=member.rollout_id,
    )
