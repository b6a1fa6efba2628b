"""The trainer as the gateway sees it: one worker process for all models."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from art.config.model import Quantization
from art.config.server import ServerConfig
from art.errors import DeadlineExceeded
from art.server.channel import Channel
from art.server.supervise import Supervised, WorkerSpec
from art.trainer.protocol import PrepareModel, Progress, SftJob, TrainJob, TrainOutcome
from art.types.jobs import CheckpointInfo, ResolvedBaseModel
from art.types.wire import WorkerHealth

RESOLVE_SECONDS = 3600.0  # a hub model of 15 GB over a slow line; the trainer itself fails fast without one
PREPARE_SECONDS = 600.0
SETTLE_SECONDS = 10.0  # from a cancellation to the end of the micro-batch in progress, or of the process


class WorkerTrainer:
    """A Trainer in a process of its own."""

    def __init__(self, settings: ServerConfig, root: Path) -> None:
        server = root / "server"
        argv = [sys.executable, "-m", "art.trainer.worker", "--cache-dir", str(server / "base_models")]
        argv += ["--dtype", settings.trainer.dtype]
        if settings.trainer.threads is not None:
            argv += ["--threads", str(settings.trainer.threads)]
        if settings.deterministic:
            argv.append("--deterministic")
        self._settings = settings
        self._prepare_seconds = PREPARE_SECONDS
        self._training: tuple[str, str, float] | None = None
        """Project and name of the model whose step is trained now, and since when (monotonic seconds)."""
        self.worker = Supervised(
            WorkerSpec(
                name="trainer",
                argv=argv,
                log_file=server / "logs" / "trainer.log",
                start_seconds=settings.trainer_start_seconds,
                heartbeat_seconds=settings.heartbeat_seconds,
                threads=settings.trainer.threads,
            )
        )

    async def resolve_base_model(
        self, name: str, *, quantization: Quantization | None = None
    ) -> ResolvedBaseModel:
        asked = {"name": name, "quantization": quantization}
        result = await self._call("resolve_base_model", asked, RESOLVE_SECONDS)
        return ResolvedBaseModel.model_validate(result)

    async def prepare_model(self, request: PrepareModel) -> CheckpointInfo:
        """Publish a model's first step. A fresh one needs the policy, so it waits for a step that is being trained.

        DeadlineExceeded names that step where the wait was too long.
        """
        try:
            return CheckpointInfo.model_validate(
                await self._call("prepare_model", request, self._prepare_seconds)
            )
        except DeadlineExceeded as error:
            if self._training is None:
                raise
            project, name, since = self._training
            busy = f"{project}/{name}" if project == request.project else "a model of another project"
            raise DeadlineExceeded(
                f"{request.project}/{request.name} could not be made ready within {self._prepare_seconds:.0f} s",
                cause=f"the trainer is training {busy}, {time.monotonic() - since:.0f} s so far",
                hint="register it again when that step has ended, or cancel its job",
            ) from error

    async def train(self, job: TrainJob | SftJob, on_progress: Callable[[Progress], None]) -> TrainOutcome:
        """Run one batch. Cancelling this coroutine cancels it in the trainer between micro-batches.

        A cancellation that comes after the step was published returns the outcome all the same. A trainer that
        does not answer the cancellation within SETTLE_SECONDS is killed and started anew.
        """
        channel = await self.worker.channel()
        self._training = job.project, job.name, time.monotonic()
        try:
            return TrainOutcome.model_validate(await self._run(channel, job, on_progress))
        finally:
            self._training = None

    async def _run(
        self, channel: Channel, job: TrainJob | SftJob, on_progress: Callable[[Progress], None]
    ) -> dict[str, Any]:
        silence = self._settings.train_seconds
        try:
            return await channel.call(
                "train_sft" if isinstance(job, SftJob) else "train",
                job.model_dump(mode="json"),
                silence=silence,
                on_event=lambda event: on_progress(Progress.model_validate(event)),
                settle=SETTLE_SECONDS,
                on_unsettled=lambda: self.worker.kill(
                    f"it did not answer a cancellation within {SETTLE_SECONDS:.0f} s"
                ),
            )
        except DeadlineExceeded:
            # It trains one job at a time: the next would wait behind the one that hangs.
            self.worker.kill(f"it said nothing about its job for {silence:.0f} s", hangs=True)
            raise

    async def delete_checkpoint(self, path: str) -> None:
        await self._call("delete_checkpoint", {"path": path}, PREPARE_SECONDS)

    def stats(self) -> dict[str, Any]:
        return self.worker.stats

    def health(self) -> WorkerHealth:
        return self.worker.health()

    async def warm(self) -> None:
        """Start the process before it is needed."""
        await self.worker.channel()

    async def stop(self) -> None:
        await self.worker.stop()

    async def _call(self, method: str, params: BaseModel | dict[str, Any], silence: float) -> dict[str, Any]:
        body = params.model_dump(mode="json") if isinstance(params, BaseModel) else params
        channel = await self.worker.channel()
        return await channel.call(method, body, silence=silence)
