"""A run from its model's registration to its last batch: demonstrations first, then a fit or a pipeline."""

from __future__ import annotations

import asyncio
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from art.backends.server import TRAIN_SECONDS
from art.config.budget import Budget
from art.config.model import ModelConfig
from art.config.resolved import kinds_of_origin, resolved
from art.errors import AgentFailed, ArtError, DeadlineExceeded, NotFound
from art.model import TrainableModel
from art.rollouts.fit import fit
from art.rollouts.fit_report import (
    FitStep,
    ended_early,
    nothing_learned,
    progress_line,
    stopped,
    where_it_stands,
)
from art.run import demonstrations, record
from art.run.display import Display
from art.run.parts import Parts
from art.run.progress import Progress, WatchedAgent
from art.run.server import settle
from art.run.signals import Stopping

if TYPE_CHECKING:
    from art.backends.server import ServerBackend
    from art.config.load import Loaded


POLL_SECONDS = 0.5
"""Between two looks at whether an earlier train call has ended."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    step: int
    batch: int
    published: int
    """Batches of this run that published a step."""
    trained: int
    """Batches of this run."""
    ended: str
    """`done`, `stopped` by a signal, or `budget`."""
    note: str
    checkpoint_path: str | None = None


@dataclass(frozen=True)
class Run:
    """Everything that one run needs."""

    loaded: Loaded
    parts: Parts
    backend: ServerBackend
    progress: Progress
    display: Display
    stopping: Stopping

    async def go(self) -> Outcome:
        """To the end of its batches, of its budget, or of the batch in hand when a signal came."""
        with self.stopping.handled():
            model = await self._model()
            await self._earlier_ended(model)
            async with model.tracking.during(self.parts.trackers):
                with self.stopping.in_hand():
                    return await self._train(model)

    async def _model(self) -> TrainableModel[Any, Any]:
        """The model, registered on a server that has the settings of the run; both told."""
        from art.backends.local import LocalBackend

        settings = self.loaded.model
        self.display.say(f"{self.progress.name}: starting, with {settings.base_model}")
        if isinstance(self.backend, LocalBackend):
            await settle(self.backend, self.loaded)
        fixed = {name: getattr(settings, name) for name in ModelConfig.model_fields}
        model: TrainableModel[Any, Any] = TrainableModel(
            name=settings.name, project=settings.project, **fixed
        )
        await model.register(self.backend)
        for paid, price in self.loaded.run.prices.items():
            model.metrics_builder().register_price(paid, price)
        for note in self.parts.notes:
            self.display.say(f"{self.progress.name}: {note}", event="note", text=note)
        return model

    async def _keep_settings(self, model: TrainableModel[Any, Any]) -> None:
        """For a run that trains something: one that finds all its batches done leaves the record of those as it is."""
        from art.backends.local import LocalBackend

        server_path = self.backend.path if isinstance(self.backend, LocalBackend) else None
        data = resolved(self.loaded, server_path=server_path)
        for note in await record.keep(model, data, kinds_of_origin(self.loaded, data)):
            self.display.say(note, event="note", text=note)

    async def _earlier_ended(self, model: TrainableModel[Any, Any]) -> None:
        """Wait for a train call of a run that was killed: it is counted when it ends, and this run goes on behind it.

        DeadlineExceeded after a day, as for a train call of our own.
        """
        route = f"/api/v1/views/runs/{quote(model.project)}/{quote(model.name)}"
        give_up, told = time.monotonic() + TRAIN_SECONDS, False
        while True:
            try:
                found = await self.backend.connection.request("GET", route)
            except NotFound:  # a server of an earlier release
                return
            if found["run"]["state"] != "training":
                return
            if time.monotonic() > give_up:
                raise DeadlineExceeded(f"a train call of {model.name} has not ended within a day")
            if not told:
                self.display.say(
                    f"{model.name}: a train call of an earlier run is in hand; waiting for its end"
                )
                told = True
            await asyncio.sleep(POLL_SECONDS)

    async def _train(self, model: TrainableModel[Any, Any]) -> Outcome:
        taken = await demonstrations.train(model, self.loaded, self.progress, self.display)
        self.progress.steps = self.loaded.run.steps + taken
        info = await model.info()
        self.progress.batch, self.progress.step = info.batch, info.step
        if info.batch < self.progress.steps:
            await self._keep_settings(model)
        where = where_it_stands(model.name, batch=info.batch, step=info.step, steps=self.progress.steps)
        self.display.say(
            where or f"{model.name}: a fresh start, {self.progress.steps} batches",
            event="start",
            model=self.progress.name,
            batch=info.batch,
            step=info.step,
            steps=self.progress.steps,
            record=str(record.file_of(model)),
        )
        done: list[FitStep] = []
        try:
            if self.loaded.run.loop == "pipeline":
                spent = await self._pipeline(model, done, info.batch)
            else:
                spent = await self._fit(model, done)
        except asyncio.CancelledError:
            batch = done[-1].batch if done else info.batch
            self.display.say(stopped(model.name, batch=batch, steps=self.progress.steps))
            raise
        except Exception as error:
            if error is not self.progress.agent_error or isinstance(error, ArtError):
                raise
            raise _agent_failed(error, self.loaded.run.max_exceptions) from error
        return await self._outcome(model, done, spent)

    async def _fit(self, model: TrainableModel[Any, Any], done: list[FitStep]) -> str:
        """Why the budget ended it; empty where it did not."""
        run, evaluation = self.loaded.run, self.loaded.evaluation

        def stepped(report: FitStep) -> None:
            done.append(report)
            self._show(report, model.name)

        result = await fit(
            model,
            self._agent(),
            self.parts.scenarios,
            steps=self.progress.steps,
            groups_per_step=run.groups_per_step,
            rollouts_per_group=run.rollouts_per_group,
            config=self.loaded.train,
            eval_scenarios=self.parts.held_out or None,
            eval_every=evaluation.every,
            eval_rollouts=evaluation.rollouts,
            max_concurrency=self.parts.concurrency,
            max_exceptions=run.max_exceptions,
            infra_retries=run.infra_retries,
            seed=run.seed,
            budget=self._budget(),
            on_step=stepped,
            should_stop=lambda: self.stopping.asked,
            verbose=False,
        )
        return result.stopped_by

    async def _pipeline(self, model: TrainableModel[Any, Any], done: list[FitStep], batch: int) -> str:
        """Why the budget ended it; empty where it did not."""
        from art.run.pipelined import pipeline_of

        left = self.progress.steps - batch
        if left <= 0:
            return ""
        self.progress.side_by_side = True
        trainer = pipeline_of(
            self.loaded,
            self.parts,
            model,
            self._agent(),
            steps=left,
            fresh=batch == 0,
            budget=self._budget(),
        )
        began = [time.monotonic()]

        def stepped(report: FitStep) -> None:
            now = time.monotonic()
            report = replace(report, batch=batch + len(done) + 1, seconds=now - began[0])
            began[0] = now
            done.append(report)
            self._show(report, model.name)

        trainer.on_step = lambda result, status: stepped(_report(result))
        with self.stopping.in_hand(trainer.request_stop):
            await trainer.train(handle_signals=False)
        return trainer.stopped_by

    def _agent(self) -> WatchedAgent:
        return WatchedAgent(self.parts.agent, self.progress, self.loaded.limits)

    def _show(self, report: FitStep, name: str) -> None:
        self.progress.stepped(
            batch=report.batch, step=report.step, reward=report.reward, seconds=report.seconds
        )
        self.display.say(
            progress_line(name, report, self.progress.steps),
            event="step",
            batch=report.batch,
            steps=self.progress.steps,
            step=report.step,
            published=report.published,
            reason=report.reason,
            reward=report.reward,
            reward_std_dev=report.reward_std_dev,
            eval_reward=report.eval_reward,
            exceptions=report.exceptions,
            seconds=round(report.seconds, 3),
            sampled_tokens=self.progress.sampled,
            metrics=report.metrics,
        )

    def _budget(self) -> Budget | None:
        run = self.loaded.run
        found = Budget(usd=run.budget_usd, tokens=run.budget_tokens, seconds=run.budget_seconds)
        return None if found == Budget() else found

    async def _outcome(self, model: TrainableModel[Any, Any], done: list[FitStep], spent: str) -> Outcome:
        info = await model.info()
        whole = info.batch >= self.progress.steps
        why = "done" if whole else ("stopped" if self.stopping.asked else "budget")
        if why == "stopped":
            self.display.say(stopped(model.name, batch=info.batch, steps=self.progress.steps))
        if why == "budget":
            self.display.say(ended_early(model.name, spent, batch=info.batch, steps=self.progress.steps))
        note = nothing_learned(model.name, done)
        self.display.say(note)
        listed = await self.backend.connection.api.checkpoints(model.project, model.name)
        return Outcome(
            step=info.step,
            batch=info.batch,
            published=sum(report.published for report in done),
            trained=len(done),
            ended=why,
            note=note,
            checkpoint_path=next((one.path for one in listed if one.step == info.step), None),
        )


def _agent_failed(error: Exception, bound: float) -> AgentFailed:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return AgentFailed(
        f"the agent raised {type(error).__name__}: {error}",
        cause=f"in {place.filename}, line {place.lineno}; more of a batch's rollouts raised than run.max_exceptions={bound:g}",
        hint="run one scenario by hand and correct what it raises, or raise run.max_exceptions",
    )


def _report(result: Any) -> FitStep:
    """A train call of a pipeline as a fit would tell it; batch and seconds are filled in by who counts them."""
    reward = result.metrics.get("train/reward", result.metrics.get("reward"))
    return FitStep(
        batch=0,
        step=result.step,
        published=result.published,
        reason=result.reason,
        reward=reward,
        reward_std_dev=result.metrics.get("train/reward_std_dev"),
        exceptions=0,
        seconds=0.0,
        metrics=result.metrics,
        trajectories=result.trajectories,
    )
