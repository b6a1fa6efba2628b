"""A backend that is an ART server: what LocalBackend and RemoteBackend have in common."""

from __future__ import annotations

import math
import uuid
from collections.abc import Awaitable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError

from art.backends.handover import groups_to_wire
from art.backends.http import Connection, Locator
from art.backends.jobs import run_job
from art.backends.options import train_config
from art.backends.results import LocalTrainResult, from_job
from art.backends.sft import sft_config, sft_request
from art.config.model import ModelConfig
from art.config.sft import TrainSFTConfig
from art.config.train import TrainConfig
from art.errors import ConfigError, InvalidInput
from art.missing import BACKEND, explain
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import wire
from art.types.wire_sft import SubmitSft
from art.utils.console import TrainLine
from art.utils.lazy import LazyCoroutine

if TYPE_CHECKING:
    from art.model import Model

TRAIN_SECONDS = 24 * 3600.0
"""Default deadline of one train call: a bound against hanging forever, not an estimate."""


class ServerBackend:
    """Registers, trains and logs models on one server. See the Backend protocol."""

    def __init__(
        self,
        locator: Locator,
        *,
        train_timeout: float = TRAIN_SECONDS,
        verify: str | None = None,
        gpu_cost_per_hour_usd: float | None = None,
    ) -> None:
        if not train_timeout > 0:
            raise ConfigError(f"train_timeout is {train_timeout}", hint="give seconds, more than 0")
        self._connection = Connection(locator, verify=verify)
        if gpu_cost_per_hour_usd is not None and not 0 <= gpu_cost_per_hour_usd < math.inf:
            raise ConfigError(
                f"gpu_cost_per_hour_usd is {gpu_cost_per_hour_usd}", hint="give USD for an hour"
            )
        self._train_timeout = train_timeout
        self.gpu_cost_per_hour_usd = gpu_cost_per_hour_usd
        """What an hour of the server's machine costs; each step's row has its share as `costs/gpu`."""

    @property
    def connection(self) -> Connection:
        """The server, as agents' clients and sessions reach it."""
        return self._connection

    @property
    def name(self) -> str:
        """The class's name, for messages."""
        return type(self).__name__

    async def register(self, model: Model[Any, Any]) -> None:
        """Make the model exist on the server, publishing its step 0 unless it is there. Idempotent.

        NotFound for a base model that cannot be had, Conflict for another configuration under the name.
        """
        config = model.server_config()
        if config is None:
            return  # a model that is only prompted: nothing to serve or train
        info = await self._connection.api.register(_registration(model.project, model.name, config))
        endpoint = await self._connection.endpoint()
        model.bind(info, url=endpoint.url, key=endpoint.key, base_path=self.base_path())
        self._connection.notices.show(info.notes, prefix=f"{info.inference_name}: ")

    def base_path(self) -> str | None:
        """The server's folder where it is on this machine, else None."""
        return None

    async def status(self, model: Model[Any, Any]) -> wire.ModelInfo:
        """The model as the server knows it: its step, its batch counter."""
        return await self._connection.api.model(model.project, model.name)

    async def train(
        self,
        model: Model[Any, Any],
        groups: Iterable[TrajectoryGroup],
        *,
        config: TrainConfig | None = None,
        verbose: bool = False,
        **options: Any,
    ) -> LocalTrainResult:
        """One train call on the recorded tokens of `groups`.

        Options are the fields of TrainConfig, by keyword or in a mapping `_config`. Trajectories that cannot train (equal rewards, a group of one,
        no calls, ...) are told apart in the result's `trajectories`, each with its reason. InvalidReward,
        InvalidInput and ConfigError are raised before anything is sent; TrainingFailed when the job fails.
        """
        resolved = train_config(options, self.name, config)
        self._require_trainable(model)
        wired = groups_to_wire(groups)
        request = wire.SubmitTrain(project=model.project, name=model.name, groups=wired, config=resolved)
        return await self._run(model, request, verbose=verbose)

    async def train_sft(
        self,
        model: Model[Any, Any],
        trajectories: Iterable[Trajectory],
        *,
        config: TrainSFTConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> LocalTrainResult:
        """Supervised fine-tuning on the assistant's messages of `trajectories`: one published step.

        They are trained in the order given, `config.batch_size` an update. A message that says
        `"trainable": False` is not trained. `_config` holds more options by name. The result's `trajectories` are
        those that were left out, by their number. InvalidInput for what cannot be rendered, and ConfigError, are
        raised before anything is trained; TrainingFailed when the job fails.
        """
        resolved = sft_config(config, _config, self.name)
        self._require_trainable(model)
        request = sft_request(model.project, model.name, trajectories, resolved)
        return await self._run(model, request, verbose=verbose)

    @staticmethod
    def _require_trainable(model: Model[Any, Any]) -> None:
        if model.server_config() is None:
            raise InvalidInput(
                f"{model.name} is not trainable",
                cause="an art.Model is only prompted",
                hint="make it an art.TrainableModel with a base_model",
            )

    async def _run(
        self, model: Model[Any, Any], request: wire.SubmitTrain | SubmitSft, *, verbose: bool
    ) -> LocalTrainResult:
        """Submit a job and wait for its end, showing where it stands."""
        await model.ready()
        with TrainLine(model.name, verbose=verbose) as line:
            result = await run_job(
                self._connection,
                request,
                key=uuid.uuid4().hex,
                deadline_seconds=self._train_timeout,
                on_event=line.show,
            )
        model.note_step(result.step)
        self._connection.notices.show(result.notes, prefix=f"{model.name}: ")
        done = from_job(result)
        model.tracking.published(done)
        return done

    async def log(self, model: Model[Any, Any], request: wire.LogRequest) -> Mapping[str, Any]:
        """Record trajectories and metrics of one split at one step in the store and history.jsonl; the row as it is kept."""
        return (await self._connection.api.log(model.project, model.name, request)).row

    async def delete_checkpoints(
        self, model: Model[Any, Any], best_checkpoint_metric: str = "val/reward"
    ) -> list[int]:
        """Keep the latest and the best step (mean of the metric per step; ties go to the later)."""
        api = self._connection.api
        steps = [checkpoint.step for checkpoint in await api.checkpoints(model.project, model.name)]
        if not steps:
            return []
        rows = await api.history(model.project, model.name)
        keep = {max(steps)}
        best = best_step(rows, best_checkpoint_metric, set(steps))
        if best is not None:
            keep.add(best)
        answer = await api.delete_checkpoints(
            model.project, model.name, [step for step in steps if step not in keep]
        )
        return answer.deleted

    async def fork(
        self,
        model: Model[Any, Any],
        from_model: str,
        *,
        from_project: str | None = None,
        not_after_step: int | None = None,
    ) -> int:
        """Start `model`, which is not registered yet, from a checkpoint of another model; the step it starts at.

        The checkpoint is copied with its number, optimizer and random state: the latest of `from_model`, or the
        latest up to `not_after_step`. Register the model afterwards as any other. NotFound without such a step,
        Conflict for a name that is taken, ConfigError for another base model or LoRA than the checkpoint's.
        """
        config = model.server_config()
        if config is None:
            raise InvalidInput(
                f"{model.name} is not trainable",
                cause="an art.Model is only prompted",
                hint="make it an art.TrainableModel with a base_model",
            )
        request = wire.ForkModel(
            project=model.project, name=model.name, config=config, not_after_step=not_after_step
        )
        info = await self._connection.api.fork(from_project or model.project, from_model, request)
        return info.step

    async def rollback(self, model: Model[Any, Any], step: int) -> int:
        """Make an earlier step the latest again; returns it. Nothing is deleted.

        Sessions keep the step they began with. The next step that is published continues from this one, under a
        number after all there were. NotFound for a step that is gone, Conflict while a job of the model is open.
        """
        await model.ready()
        info = await self._connection.api.roll_back(model.project, model.name, step)
        model.note_step(info.step)
        return info.step

    def close(self) -> Awaitable[None]:
        """Let go of the server, at once; awaiting also closes this loop's connections."""
        self._release()
        return LazyCoroutine(self._connection.transport.aclose)

    def _release(self) -> None:
        """Undo what the constructor or first use took hold of."""

    if not TYPE_CHECKING:  # a declared __getattr__ would make every misspelt attribute type-check

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                explain("backend", name, BACKEND)
                or f"{type(self).__name__!r} object has no attribute {name!r}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def best_step(rows: Iterable[dict[str, object]], metric: str, steps: set[int]) -> int | None:
    """The step with the highest mean of `metric` among history rows; None when no row has it."""
    values: dict[int, list[float]] = {}
    for row in rows:
        step, value = row.get("step", row.get("training_step")), row.get(metric)
        if isinstance(step, int) and step in steps and isinstance(value, int | float):
            values.setdefault(step, []).append(float(value))
    if not values:
        return None
    return max(values, key=lambda step: (sum(values[step]) / len(values[step]), step))


def _registration(project: str, name: str, config: ModelConfig) -> wire.RegisterModel:
    """InvalidInput for a name that no model can have."""
    try:
        return wire.RegisterModel(project=project, name=name, config=config)
    except ValidationError as error:
        raise InvalidInput(
            f"a model cannot be called {project}/{name}",
            cause=f"wrong: {', '.join(str(item['loc'][0]) for item in error.errors())}",
            hint="up to 100 letters, digits, `.`, `_` and `-`, beginning with a letter or a digit",
        ) from error
