"""Which trackers a model's rows go to. They are opened with the first row, or with a fit."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from art.errors import ConfigError, FixedValue
from art.types.metrics import POSITION
from art.utils.console import Notices
from art.utils.threads import in_thread

if TYPE_CHECKING:
    from art.backends.results import LocalTrainResult
    from art.integrations.batch import ReadRollout
    from art.integrations.registry import Asked
    from art.integrations.reporter import Reporter
    from art.integrations.tracker import RunInfo
    from art.model import Model
    from art.trajectories import TrajectoryGroup

CLOSE_SECONDS = 10.0
"""Deadline of closing, all trackers together: what a person waits for at the end of a program."""
DRAIN_SECONDS = 5.0
"""How long the end of a fit waits for what is queued; it goes on being sent afterwards."""
RUN_SECONDS = 120.0
"""How long `_get_wandb_run` waits for W&B, which itself gives up after 90."""
DROPS = "pipeline/tracker_drops"
"""Metric: rows, rollouts and checkpoints that some tracker did not get, since the program began."""
_notices = Notices()


class Tracking:
    """Of one model. Nothing is imported before a tracker is asked for."""

    def __init__(self, model: Model[Any, Any]) -> None:
        self._model = model
        self._asked: list[Asked] = []
        self._reporter: Reporter | None = None
        self._wandb_config: dict[str, Any] = {}

    # -- asking

    def ask(self, tracker: Asked) -> bool:
        """Report to it from now on; False when it was asked for before.

        ConfigError as the registry raises it, and when it was asked for with other options.
        """
        from art.integrations.registry import name_of, require

        name = name_of(tracker)
        earlier = [item for item in self.wanted() if name_of(item) == name]
        if earlier and tracker not in (name, *earlier):
            raise ConfigError(
                f"the tracker {name} is asked for twice, and differently",
                cause="its options would be ignored the second time",
                hint="ask for it once: in report_metrics, or with options in trackers=[...] or model.report_to(...)",
            )
        if earlier:
            return False
        require([tracker])
        self._asked.append(tracker)
        if self._reporter is not None:
            self._open()
        return True

    def wanted(self) -> list[Asked]:
        """In the order in which they were asked for."""
        return [*(self._model.report_metrics or ()), *self._asked]

    def require(self) -> None:
        """ConfigError when one of them cannot be had."""
        if wanted := self.wanted():
            from art.integrations.registry import require

            require(wanted)

    def _open(self) -> Reporter | None:
        wanted = self.wanted()
        if not wanted:
            self._say_who_would_have()
            return self._reporter
        from art.integrations.registry import make, name_of
        from art.integrations.reporter import Reporter

        if self._reporter is None:
            self._reporter = Reporter(self._run_info())
        for asked in wanted:
            if name_of(asked) not in self._reporter.names:
                self._reporter.add(make(asked))
                if name_of(asked) == "wandb" and self._wandb_config:
                    self._tell_wandb(self._wandb_config)
        return self._reporter

    def _say_who_would_have(self) -> None:
        if self._model.report_metrics is None and os.environ.get("WANDB_API_KEY"):
            _notices.show(
                ['WANDB_API_KEY is set, and nothing is sent to W&B: report_metrics=["wandb"] sends it there']
            )

    def _run_info(self) -> RunInfo:
        from art.integrations.tracker import RunInfo

        model = self._model
        return RunInfo(
            project=model.project,
            name=model.name,
            run_id=model.run_id or model.name,
            entity=model.entity,
            folder=Path(model.base_path) / model.project / "models" / model.name,
            config=_described(model),
        )

    @property
    def names(self) -> list[str]:
        """Those that are open."""
        return [] if self._reporter is None else self._reporter.names

    def drain(self, seconds: float = DRAIN_SECONDS) -> bool:
        """Wait until what is queued was taken, at most so many seconds; False when something is left."""
        return self._reporter is None or self._reporter.drain(seconds)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Close them, within so many seconds; the next row opens them again. A program's end does so by itself."""
        if self._reporter is not None:
            self._reporter.close(seconds)

    # -- reporting

    def before(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Open what was asked for, and add what trackers have lost to the metrics of a row that is about to be recorded."""
        reporter = self._open()
        lost = 0 if reporter is None else reporter.lost
        return {**metrics, **({DROPS: float(lost)} if lost else {})}

    def report(self, row: Mapping[str, Any], split: str, groups: Sequence[TrajectoryGroup]) -> None:
        """A row as it was recorded, and the groups behind it."""
        if self._reporter is None:
            return
        from art.integrations.batch import Batch
        from art.integrations.tracker import Row

        figures = {
            name: float(value)
            for name, value in row.items()
            if name not in POSITION and isinstance(value, int | float)
        }
        told = Row(int(row["step"]), split, figures, _seconds(row.get("recorded_at")))
        self._reporter.row(told)
        if self._reporter.takes_rollouts:
            self._reporter.rollouts(Batch(told, groups, _recorded_rollout(self._model)))

    def published(self, result: LocalTrainResult) -> None:
        """A step, where its checkpoint lies on this machine."""
        path = result.checkpoint_path
        if self._reporter is None or not result.published or path is None or not Path(path).is_dir():
            return
        from art.integrations.tracker import PublishedStep

        self._reporter.checkpoint(PublishedStep(result.step, Path(path), dict(result.metrics)))

    @asynccontextmanager
    async def during(self, trackers: Sequence[Asked]) -> AsyncIterator[None]:
        """Report to these too, for the time of a block; at its end they are closed, and others get what is queued."""
        from art.integrations.registry import name_of

        own = [asked for asked in trackers if self.ask(asked)]
        self._open()
        try:
            yield
        finally:
            self._asked = [asked for asked in self._asked if asked not in own]
            if self._reporter is not None:
                names = [name_of(asked) for asked in own]
                await in_thread(partial(_finish, self._reporter, names), name="art-trackers")

    # -- what openpipe-art calls by W&B's name

    def update_wandb_config(self, config: Mapping[str, Any]) -> None:
        """Merge into the configuration of the W&B run. FixedValue for another value than an earlier one."""
        self._wandb_config = _merged(self._wandb_config, config)
        self._want_wandb()
        if self._reporter is not None:
            self._tell_wandb(config)

    def wandb_run(self) -> Any:
        """The W&B run, begun if need be; None where there is no key, or W&B cannot be reached."""
        if not (os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE") == "offline"):
            return None
        self._want_wandb()
        reporter = self._open()
        if reporter is None or "wandb" not in reporter.names:
            return None
        return reporter.ask("wandb", lambda tracker: getattr(tracker, "run", None), RUN_SECONDS)

    def _want_wandb(self) -> None:
        """Calling these by their names asks for W&B, unless `report_metrics` says what is asked for."""
        from art.integrations.registry import name_of

        keyed = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE") == "offline"
        asked = any(name_of(item) == "wandb" for item in self.wanted())
        if self._model.report_metrics is None and keyed and not asked:
            self.ask("wandb")

    def _tell_wandb(self, config: Mapping[str, Any]) -> None:
        if self._reporter is not None:
            given = dict(config)
            self._reporter.tell("wandb", lambda tracker: tracker.update_config(given))  # type: ignore[attr-defined]


def _finish(reporter: Reporter, names: Sequence[str]) -> None:
    reporter.close(CLOSE_SECONDS, names=names)
    reporter.drain(DRAIN_SECONDS)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        before = result.get(key, value)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = _merged(before, value, f"{path}{key}.")
        elif before != value:
            raise FixedValue(
                "W&B config is immutable once set",
                cause=f"{path}{key} is {before!r} and would become {value!r}",
                hint="choose another name for the new value",
            )
        else:
            result[key] = value
    return result


def _described(model: Model[Any, Any]) -> dict[str, Any]:
    """Plain values that tell trackers what is trained."""
    fixed = model.server_config()
    return {} if fixed is None else fixed.model_dump(mode="json", exclude={"chat_template"})


def _recorded_rollout(model: Model[Any, Any]) -> ReadRollout | None:
    """Asks the server what it recorded of a rollout; None where there is no server."""
    return model.backend().connection.api.rollout if model.served else None


def _seconds(recorded_at: object) -> float:
    """Since 1970; now, where a row does not say when it was recorded."""
    try:
        return datetime.fromisoformat(str(recorded_at)).timestamp()
    except ValueError:
        return time.time()


class Reporting:
    """The part of a model that reports to trackers."""

    _tracking: Tracking | None

    @property
    def tracking(self) -> Tracking:
        """The trackers that rows are reported to."""
        if self._tracking is None:
            self._tracking = Tracking(cast("Model[Any, Any]", self))
        return self._tracking

    def report_to(self, tracker: Asked, **options: Any) -> None:
        """Report rows to a tracker from now on: a name with its options, or an object that is one (docs/trackers.md).

        ConfigError for a name nobody has, a package that is not installed, and an option that does not exist.
        """
        self.tracking.ask({"name": tracker, **options} if options else tracker)

    def update_wandb_config(self, config: Mapping[str, Any]) -> None:
        """Merge into the configuration of the W&B run; FixedValue (a ValueError) when a value would change."""
        self.tracking.update_wandb_config(config)

    def _get_wandb_run(self) -> Any:
        """The W&B run of this model; None without WANDB_API_KEY."""
        return self.tracking.wandb_run()
