"""A backend in memory for the tests of PipelineTrainer: it really waits, and for events, never for time.

What is to end, and when, is the test's to say: every rollout and train call of a held kind waits for `release`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import art
from art.backends.results import LocalTrainResult
from art.config.model import ModelConfig
from art.errors import Conflict
from art.pipeline_trainer import PipelineTrainer
from art.types import wire

TICKS = 100
"""Turns of the loop after which everything that can go on by itself has done so."""


async def settle() -> None:
    for _ in range(TICKS):
        await asyncio.sleep(0)


class Held:
    """Things that wait until they are released, by name."""

    def __init__(self) -> None:
        self.open: dict[Any, asyncio.Future[Any]] = {}
        self.cancelled: list[Any] = []

    async def wait(self, name: Any) -> Any:
        future = self.open[name] = asyncio.get_running_loop().create_future()
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            del self.open[name]

    def release(self, name: Any, value: Any = None) -> None:
        self.open[name].set_result(value)

    def fail(self, name: Any, error: BaseException) -> None:
        self.open[name].set_exception(error)


class MemoryBackend:
    """Trains by counting. `hold` lets every train call wait in `held` under its number, from 1."""

    def __init__(self, *, hold: bool = False) -> None:
        self.hold = hold
        self.held = Held()
        self.step = self.batch = 0
        self.publishes: Callable[[int], bool] = lambda batch: True
        self.calls: list[SimpleNamespace] = []
        """Train calls: parent (step), groups, options, and whether it ended."""
        self.logged: list[wire.LogRequest] = []
        self.deleted: list[int] = []
        self.in_use: set[int] = set()
        self.connection: Any = SimpleNamespace(api=_Api(self))

    async def register(self, model: art.Model[Any, Any]) -> None:
        model.bind(self.info(), url="http://memory", key="key", base_path=None)

    def info(self) -> wire.ModelInfo:
        return wire.ModelInfo(
            project="p",
            name="m",
            config=ModelConfig(base_model="base"),
            base_model_path="/base",
            parameters=1,
            context_length=64,
            step=self.step,
            batch=self.batch,
            inference_name="p/m",
            model_dir="/models",
        )

    async def train(
        self, model: art.Model[Any, Any], groups: Iterable[art.TrajectoryGroup], **options: Any
    ) -> art.TrainResult:
        call = SimpleNamespace(parent=self.step, groups=list(groups), options=options, ended=False)
        self.calls.append(call)
        if self.hold:
            await self.held.wait(len(self.calls))
        else:
            await asyncio.sleep(0)
        self.batch += 1
        published = self.publishes(self.batch)
        self.step += published
        model.note_step(self.step)
        call.ended = True
        await asyncio.sleep(0)  # counted, and the program does not know yet
        return LocalTrainResult(
            step=self.step,
            batch=self.batch,
            published=published,
            reason="" if published else "no signal",
            metrics={"loss/train": 0.5, "train/reward": 1.0},
        )

    async def log(self, model: art.Model[Any, Any], request: wire.LogRequest) -> wire.Logged:
        await asyncio.sleep(0)
        self.logged.append(request)
        return wire.Logged(rollouts=0)

    async def delete_checkpoints(self, model: art.Model[Any, Any], best_checkpoint_metric: str) -> list[int]:
        raise AssertionError("the pipeline names the steps itself")

    async def close(self) -> None:
        """Nothing is held."""

    def rows(self, split: str) -> list[dict[str, float]]:
        return [request.metrics for request in self.logged if request.split == split]

    def trained(self) -> list[int]:
        """Numbers of the scenarios whose groups were trained, in order."""
        return [scenario_of(group) for call in self.calls if call.ended for group in call.groups]


class _Api:
    """What the pipeline asks of the server beside training and logging."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    async def model(self, project: str, name: str) -> wire.ModelInfo:
        return self._backend.info()

    async def checkpoints(self, project: str, name: str) -> list[wire.Checkpoint]:
        steps = [step for step in range(self._backend.step + 1) if step not in self._backend.deleted]
        return [wire.Checkpoint(step=step, path=f"/{step}", created_at=float(step)) for step in steps]

    async def history(self, project: str, name: str) -> list[dict[str, object]]:
        return [{"step": request.step, **request.metrics} for request in self._backend.logged]

    async def delete_checkpoints(self, project: str, name: str, steps: list[int]) -> wire.DeletedCheckpoints:
        if self._backend.in_use & set(steps):
            raise Conflict(f"steps {steps} are in use")
        self._backend.deleted += steps
        return wire.DeletedCheckpoints(deleted=steps, missing=[])


def scenario_of(group: art.TrajectoryGroup) -> int:
    number = group.metadata["scenario"]
    assert isinstance(number, int)
    return number


def group_of(scenario: int, *, rewards: Iterable[float] = (0.0, 1.0)) -> art.TrajectoryGroup:
    return art.TrajectoryGroup(
        [art.Trajectory(reward=reward) for reward in rewards], metadata={"scenario": scenario}
    )


class Rollouts:
    """A rollout function. `hold`: each waits in `held` under its scenario; released with an exception it fails."""

    def __init__(self, *, hold: bool = False) -> None:
        self.hold = hold
        self.held = Held()
        self.started: list[int] = []
        self.most = self.running = 0

    async def __call__(self, model: Any, scenario: int, config: Any) -> art.TrajectoryGroup:
        self.started.append(scenario)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.hold:
                await self.held.wait(scenario)
            else:
                await asyncio.sleep(0)
        finally:
            self.running -= 1
        return group_of(scenario)


def new_model(folder: Path) -> art.TrainableModel[Any, Any]:
    """The model as a program that starts has it: its state lies in `folder`."""
    model: art.TrainableModel[Any, Any] = art.TrainableModel(
        name="m", project="p", base_model="base", base_path=str(folder)
    )
    return model


def trainer(
    folder: Path, backend: MemoryBackend, rollout_fn: Any, scenarios: Any, eval_fn: Any = None, **options: Any
) -> PipelineTrainer:
    """A small pipeline of a program that has just started."""
    small = {"num_rollout_workers": 2, "min_batch_size": 2, "max_batch_size": 2, "log_interval_seconds": 0}
    return PipelineTrainer(
        new_model(folder), backend, rollout_fn, scenarios, None, eval_fn, **{**small, **options}
    )
