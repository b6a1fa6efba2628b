"""What a model logs: one row of figures of a split at a step, with what this program knows of its time and its costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from typing import TYPE_CHECKING, Any, cast

from art.backends.handover import as_groups, log_request
from art.metrics import MetricsBuilder
from art.types import wire
from art.types.cumulative import advance, totals_in
from art.types.metrics import POSITION

if TYPE_CHECKING:
    from art.backends.results import TrainResult
    from art.model import Model
    from art.trajectories import Trajectory, TrajectoryGroup

STATE_KEY = "_metrics_builder_state"
"""In the model's state, as programs for openpipe-art know it: the sums of its MetricsBuilder."""
TRAINED = "time/step_trainer_s"
"""A row that holds it is the one of a train call."""
HOUR = 3600.0


class ModelLog:
    """One model's logging in this program. Bound to no event loop."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        """When the last train call was logged, or the model was set up."""
        self._totals: dict[str, float] = {}
        """The run's sums where the backend does not make them."""
        self._builder: MetricsBuilder | None = None

    def begin(self) -> None:
        """The model is set up: from here on its first step takes its time."""
        self._since = time.monotonic()

    def builder(self, model: Model[Any, Any]) -> MetricsBuilder:
        """The model's builder, with the sums of earlier programs."""
        if self._builder is None:
            self._builder = MetricsBuilder("train")
            state = model.read_state()
            if state is not None and isinstance(kept := state.get(STATE_KEY), Mapping):
                self._builder.load_state_dict(kept)
        return self._builder

    async def record(
        self,
        model: Model[Any, Any],
        groups: Sequence[TrajectoryGroup],
        metrics: Mapping[str, float],
        *,
        split: str,
        step: int,
        sent: bool = True,
    ) -> dict[str, Any]:
        """Log one row, with the costs that were counted for its split; the row as it is kept.

        `sent`: the groups go with it; else only their averages, because the server has them.
        """
        builder = None if self._builder is None else self._builder.for_cost_context(cost_context(split))
        costs = {} if builder is None else builder.take()
        try:
            figures = {**costs, **model.tracking.before(metrics)}
            now = time.monotonic()
            if TRAINED in metrics:
                figures |= step_figures(figures, wall=now - self._since, hourly=hourly_cost(model))
            row = await self._send(
                model, log_request(list(groups), figures, split=split, step=step, sent=sent)
            )
        except BaseException:
            if builder is not None:
                builder.give_back(costs)
            raise
        if TRAINED in metrics:
            self._since = now
        if builder is not None and builder.used:
            self._keep(model, builder, row)
        model.tracking.report(row, split, groups)
        return row

    async def _send(self, model: Model[Any, Any], request: wire.LogRequest) -> dict[str, Any]:
        if model.served:
            await model.ready()
            row = await model.backend().log(model, request)
        else:
            row = await asyncio.to_thread(model.files().log, request)
        if row:
            return dict(row)
        # A backend of somebody else's, which tells nothing.
        self._totals, added = advance(self._totals, request.metrics)
        return {"step": request.step, **request.metrics, **added}

    @staticmethod
    def _keep(model: Model[Any, Any], builder: MetricsBuilder, row: Mapping[str, Any]) -> None:
        # On the loop and not in a thread: the program's own merge_state must not come in between reading and writing.
        before = builder.state_dict()
        builder.know(totals_in(row))
        if (state := builder.state_dict()) != before:
            model.merge_state({STATE_KEY: state})


def cost_context(split: str) -> str:
    """Under which name the costs of a split are counted: `costs/train`, `costs/eval`."""
    return "eval" if split in ("val", "test") else split


def hourly_cost(model: Model[Any, Any]) -> float | None:
    """USD for an hour of the machine that the model's backend runs on; None where nobody gave it."""
    return getattr(model.backend(), "gpu_cost_per_hour_usd", None) if model.served else None


def step_figures(metrics: Mapping[str, float], *, wall: float, hourly: float | None) -> dict[str, float]:
    """Figures of a step that follow from others: its wall time, idle times and shares, speeds, and the machine's cost.

    `wall`: seconds since the step before. What `metrics` holds already stands as it is.
    """
    wall = metrics.get("time/step_wall_s", wall)
    found = {"time/step_wall_s": wall}
    for who, tokens in (("trainer", "data/step_trainer_tokens"), ("actor", "data/step_actor_tokens")):
        seconds = metrics.get(f"time/step_{who}_s")
        if seconds is None:
            continue
        idle = metrics.get(f"throughput/step_{who}_idle_s", max(0.0, wall - seconds))
        found[f"throughput/step_{who}_idle_s"] = idle
        if wall > 0:
            found[f"throughput/step_{who}_idle_share"] = min(1.0, idle / wall)
        if seconds > 0 and tokens in metrics:
            found[f"throughput/step_{who}_tok_per_s"] = metrics[tokens] / seconds
    if hourly is not None:
        found["costs/gpu"] = wall * hourly / HOUR
    return {name: value for name, value in found.items() if name not in metrics}


class Logging:
    """The part of a model that logs."""

    async def log(
        self,
        trajectories: Iterable[TrajectoryGroup] | Iterable[Trajectory | BaseException] | None = None,
        split: str = "val",
        *,
        metrics: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> dict[str, Any]:
        """Record trajectories (groups or loose ones) and metrics of a split at a step; the row as it is kept.

        One row goes to history.jsonl: averages of the trajectories under `{split}/...`, `metrics`, what was counted by
        `metrics_builder`, and the sums over the run (docs/metrics.md).
        """
        model = _model(self)
        groups = as_groups(trajectories, "log")
        at = await model.get_step() if step is None else step
        return await model.logbook().record(model, groups, metrics or {}, split=split, step=at)

    async def log_result(self, groups: list[TrajectoryGroup], result: TrainResult) -> TrainResult:
        """Log a train call whose groups the server has; its result with the figures of the row."""
        model = _model(self)
        row = await model.logbook().record(
            model, groups, result.metrics, split="train", step=result.step, sent=False
        )
        result.metrics = {**result.metrics, **figures_of(row)}
        return result

    def metrics_builder(self, cost_context: str | None = None) -> MetricsBuilder:
        """Counts figures and costs for the model's next row: of `train` unless told otherwise (`eval`)."""
        builder = _model(self).logbook().builder(_model(self))
        return builder if cost_context is None else builder.for_cost_context(cost_context)

    def activate_metrics_context(self, cost_context: str) -> Token[MetricsBuilder]:
        """From here on in this task `art.metrics.track_api_cost` counts for this model, under `cost_context`."""
        return self.metrics_builder(cost_context).activate()

    @contextmanager
    def counting(self, cost_context: str) -> Iterator[None]:
        """`activate_metrics_context` for a block, unless the program has a builder of its own active."""
        try:
            MetricsBuilder.get_active()
        except LookupError:
            with self.metrics_builder(cost_context).activate_context():
                yield
        else:
            yield


def _model(owner: Logging) -> Model[Any, Any]:
    return cast("Model[Any, Any]", owner)


def figures_of(row: Mapping[str, Any]) -> dict[str, float]:
    """A row without its place."""
    return {name: value for name, value in row.items() if name not in POSITION}
