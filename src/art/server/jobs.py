"""Training jobs: one queue for the trainer, events that survive a restart, attempts that are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from art.config.server import ServerConfig
from art.errors import ArtError, InfraError, NotFound, TrainingFailed, WorkerDied
from art.server.kept_traces import keep_traces
from art.server.outcome import automatic_choices, conclude, resolve_config
from art.server.persist import Persist, Unwritten
from art.server.recovery import holds_step_of
from art.server.retention import Retention
from art.server.sft import sft_job
from art.server.versions import ModelEntry, Versions
from art.store.records import IdempotencyRow, JobRow, JobSpec, ModelRow, RewardChange
from art.store.store import BLOBS, Store
from art.trainer.protocol import Progress, SftJob, Trainer, TrainJob, TrainOutcome
from art.types.wire import JobEvent, JobInfo

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3  # times that the trainer takes up one job, over restarts of trainer and server
PUBLISH_ATTEMPTS = 3  # loads of a finished checkpoint into the engine; a restarting engine needs a second one
CANCEL_SECONDS = 60.0  # a cancelled job is waited for; longer only when its end cannot be written
KEEP_ALIVE_SECONDS = 10.0  # between comments on a silent event stream
FINAL = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class _Running:
    """The job in progress."""

    job_id: str
    task: asyncio.Task[None]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Its end is written, or left for the next start."""


class Jobs:
    """Submits, runs, cancels and narrates jobs. `start` once, `stop` once."""

    def __init__(
        self,
        settings: ServerConfig,
        root: Path,
        *,
        store: Store,
        trainer: Trainer,
        versions: Versions,
        notes: Sequence[str] = (),
    ) -> None:
        """`notes`: what every result says of how it was computed."""
        self._notes = notes
        self._settings = settings
        self._blob_dir = root / "server" / BLOBS
        self._store = store
        self._trainer = trainer
        self._versions = versions
        self.retention = Retention(settings, store=store, trainer=trainer, versions=versions)
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._news: dict[str, asyncio.Event] = {}
        self._running: _Running | None = None
        self._persist = Persist()
        self._closing = False
        self._abandoned = False
        self._runner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up jobs that were open when the server ended, then wait for new ones."""
        for job in await self._store.open_jobs():
            self._queue.put_nowait(job.info.job_id)
        self._runner = asyncio.create_task(self._run_queue(), name="jobs")

    async def stop(self) -> None:
        """Let the job in progress end; those that wait stay queued for the next start."""
        if self._runner is None:
            return
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)
        self._persist.give_up()
        await self._runner
        self._closing = True
        for job_id in list(self._news):
            self._announce(job_id)

    def abandon(self) -> None:
        """Let go of the job in progress: it stays `running` in the store and is taken up at the next start."""
        self._abandoned = True
        self._persist.give_up()
        if self._running is not None:
            self._running.task.cancel()

    @property
    def queue(self) -> asyncio.Task[None]:
        """What runs the jobs; it ends at `stop` alone. After `start`."""
        assert self._runner is not None, "start comes first"
        return self._runner

    @property
    def busy(self) -> bool:
        """True while a job runs."""
        return self._running is not None

    async def submit(
        self,
        model: ModelRow,
        spec: JobSpec,
        *,
        rewards: list[RewardChange],
        idempotency: tuple[str, str] | None = None,
    ) -> JobInfo:
        """Queue a job. `idempotency` is (key, digest of the request): the same key gives the same job."""
        job_id = f"job_{uuid.uuid4().hex[:20]}"
        info = JobInfo(
            job_id=job_id,
            project=model.project,
            name=model.name,
            kind="train" if spec.sft is None else "sft",
            status="queued",
            created_at=time.time(),
        )
        claim = None
        if idempotency is not None:
            scope = f"jobs:{model.project}/{model.name}"
            claim = IdempotencyRow(scope=scope, key=idempotency[0], digest=idempotency[1], ref=job_id)
        job = await self._store.submit_job(JobRow(info=info, spec=spec), rewards=rewards, idempotency=claim)
        if job.info.job_id == job_id:
            self._queue.put_nowait(job_id)
        return job.info

    async def cancel(self, job_id: str) -> JobInfo:
        """Cancel a queued job at once, a running one between micro-batches. One that has ended stays so.

        A trainer that does not stop in time is killed, so the answer comes within seconds; only a step that
        is being published now is waited for.
        """
        job = await self._store.cancel_job(job_id)
        running = self._running
        if running is not None and running.job_id == job_id:
            running.task.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await running.ended.wait()
            job = await self._store.get_job(job_id)
        elif job.info.status not in FINAL:  # nobody runs it: it waits to be taken up, or was left behind
            job = await self._store.fail_job(job_id, status="cancelled", error=_cancelled().to_dict())
        self._announce(job_id)
        return job.info

    async def events(self, job_id: str, after: int) -> AsyncGenerator[JobEvent | None, None]:
        """Events with an id above `after` until the last; None when there was none for a while.

        Ends early when the server stops; a client resumes where it was.
        """
        while not self._closing:
            news = self._news.setdefault(job_id, asyncio.Event())
            found = await self._store.events_after(job_id, after)
            for event in found:
                after = event.id
                yield event
                if event.type in FINAL:
                    self._news.pop(job_id, None)
                    return
            if found:
                continue
            if (await self._store.get_job(job_id)).info.status in FINAL:
                self._news.pop(job_id, None)
                return
            try:
                # Not wait_for: on Python 3.11 it swallows a cancellation that comes together with the news.
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await news.wait()
            except TimeoutError:
                yield None

    def _announce(self, job_id: str) -> None:
        news = self._news.pop(job_id, None)
        if news is not None:
            news.set()

    async def _note(self, job_id: str, kind: str, data: dict[str, Any]) -> None:
        await self._store.add_event(job_id, kind, data)
        self._announce(job_id)

    # -- the queue

    async def _run_queue(self) -> None:
        while (job_id := await self._queue.get()) is not None:
            task = asyncio.create_task(self._attempts(job_id), name=job_id)
            self._running = running = _Running(job_id, task)
            await asyncio.wait([task])
            # Before the next job is taken: what it trains stands on the end of this one.
            await self._close(job_id, task)
            self._running = None
            running.ended.set()
            self._announce(job_id)

    async def _close(self, job_id: str, task: asyncio.Task[None]) -> None:
        """Write down how a job ended that has not done so itself, whatever the reason."""
        status, error = "failed", None if task.cancelled() else task.exception()
        failure: ArtError
        if task.cancelled():
            status, failure = "cancelled", _cancelled()
        elif error is None:
            return
        elif isinstance(error, Unwritten):
            logger.critical("%s: %s; it is taken up again at the next start", job_id, error)
            return
        elif isinstance(error, ArtError):
            failure = error
        else:  # the boundary of a job: a bug in one must not stop the queue
            cause = f"{type(error).__name__}: {error}"
            failure = InfraError("the training job failed", cause=cause, hint="see server/logs")
        if self._abandoned:
            return
        if status == "failed":
            logger.error("%s failed: %s", job_id, error, exc_info=None if failure is error else error)
        try:
            await self._persist(
                f"the end of {job_id}",
                lambda: self._store.fail_job(job_id, status=status, error=failure.to_dict()),
            )
        except Exception as unwritten:  # a boundary: the queue goes on whatever this is
            logger.critical("%s could not be ended", job_id, exc_info=unwritten)

    async def _attempts(self, job_id: str) -> None:
        job = await self._store.get_job(job_id)
        event = "started" if job.info.started_at is None else "restarted"
        tries = 0
        while job.info.status not in FINAL:
            if job.cancel_requested:
                raise asyncio.CancelledError
            if job.info.attempts >= MAX_ATTEMPTS and not await self._is_trained(job):
                raise TrainingFailed(
                    f"the job was started {job.info.attempts} times and did not end",
                    cause="trainer or server ended each time while it ran",
                    hint="see server/logs/trainer.log; a batch with fewer tokens needs less memory",
                )
            started = await self._persist(
                f"the start of {job_id}", partial(self._store.start_job, job_id, event)
            )
            self._announce(job_id)
            tries += 1
            try:
                await self._attempt(started)
            except WorkerDied as error:
                logger.warning("%s: %s", job_id, error)
                # Tries count too: a trainer that ends before it takes the job up must not be asked for ever.
                if tries >= MAX_ATTEMPTS:
                    raise
                job = await self._store.get_job(job_id)
                event = "restarted"
            else:
                return

    async def _is_trained(self, job: JobRow) -> bool:
        """Whether the job's step lies finished on the disk: the trainer returns its outcome, and trains nothing."""
        model = await self._store.get_model(job.info.project, job.info.name)
        if model is None or job.parent_step is None:
            return False
        folder = Path(model.model_dir)
        return await asyncio.to_thread(holds_step_of, folder, job.info.job_id, after=job.parent_step)

    async def _attempt(self, job: JobRow) -> None:
        info = job.info
        model = await self._store.get_model(info.project, info.name)
        if model is None:
            raise NotFound(
                f"the model {info.project}/{info.name} is not registered",
                hint="register it: model.register(backend)",
            )
        entry = self._versions.entry(info.project, info.name)
        assert job.batch is not None, "a started job has its place"
        assert job.parent_step is not None, "a started job has its place"
        last = await self._store.last_step(*entry.key)
        if job.spec.sft is not None:
            outcome = await self._train(sft_job(job, model, self._blob_dir, last=last))
        elif not job.spec.groups:
            outcome = TrainOutcome(step=job.parent_step, published=False)  # why, `conclude` says
        else:
            outcome = await self._train(self._train_job(job, model, last))
        # A trained step is published and recorded whole: a cancellation that comes now comes too late.
        ending = asyncio.create_task(self._end(job, entry, outcome), name=f"{info.job_id}-end")
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([ending])
        ending.result()

    async def _end(self, job: JobRow, entry: ModelEntry, outcome: TrainOutcome) -> None:
        assert job.batch is not None, "a started job has its place"
        if outcome.published and outcome.checkpoint is not None:
            await self._publish(entry, job.info.job_id, outcome)
            await keep_traces(self._store, entry.row, job.info.job_id, outcome.step)
        result, outcomes = conclude(job, outcome, [*self._notes, *automatic_choices(job, entry.row)])
        job_id = job.info.job_id
        await self._persist(
            f"the end of {job_id}", lambda: self._store.complete_job(job_id, result, outcomes)
        )
        if not result.published:
            logger.info("%s published nothing: %s", job_id, result.reason)
        self._announce(job_id)
        entry.row = entry.row.model_copy(update={"batch": max(entry.row.batch, job.batch)})
        try:
            await self.retention.apply(entry)
        except ArtError as error:
            logger.warning("%s: no step was deleted for now: %s", entry.wire_name, error)

    def _train_job(self, job: JobRow, model: ModelRow, last: int) -> TrainJob:
        """`last`: the model's highest step so far, which is its parent unless `latest` was rolled back."""
        assert job.batch is not None
        assert job.parent_step is not None
        return TrainJob(
            job_id=job.info.job_id,
            project=model.project,
            name=model.name,
            batch=job.batch,
            base=model.base,
            model_dir=model.model_dir,
            blob_dir=str(self._blob_dir),
            parent_step=job.parent_step,
            step=max(last, job.parent_step) + 1,
            lora=model.config.adapter,
            config=resolve_config(job.spec, model),
            groups=job.spec.groups,
            history=model.config.history,
            seed=model.config.lora.seed,
        )

    async def _train(self, job: TrainJob | SftJob) -> TrainOutcome:
        """Run the trainer, writing its progress down as it comes; a slow disk drops steps in between."""
        latest: asyncio.Queue[Progress] = asyncio.Queue(maxsize=1)
        taken_up: list[asyncio.Task[None]] = []

        def on_progress(progress: Progress) -> None:
            if not taken_up:  # its first word: from here on an end of the trainer may be the job's doing
                count = _logged(job.job_id, self._store.count_attempt(job.job_id))
                taken_up.append(asyncio.create_task(count, name=f"{job.job_id}-attempt"))
            if latest.full():
                latest.get_nowait()
            latest.put_nowait(progress)

        async def write() -> None:
            while True:
                progress = await latest.get()
                await _logged(job.job_id, self._note(job.job_id, "progress", progress.model_dump()))

        writer = asyncio.create_task(write(), name=f"{job.job_id}-progress")
        try:
            return await self._trainer.train(job, on_progress)
        finally:
            writer.cancel()
            # What was trained is returned: a cancellation that comes now comes too late.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([writer, *taken_up])

    async def _publish(self, entry: ModelEntry, job_id: str, outcome: TrainOutcome) -> None:
        """Make a finished checkpoint the latest; one that the engine refuses is deleted, and the job fails."""
        checkpoint = outcome.checkpoint
        assert checkpoint is not None
        for attempt in range(1, PUBLISH_ATTEMPTS + 1):
            try:
                await self._versions.publish(
                    entry, checkpoint, metrics=outcome.metrics, job_id=job_id, persist=self._persist
                )
                return
            except WorkerDied as error:
                logger.warning("%s: the engine ended while it loaded the new step (%d)", job_id, attempt)
                refusal: ArtError = TrainingFailed(
                    "the new step could not be loaded", cause=str(error), hint=error.hint
                )
            except ArtError as error:
                refusal = error
                break
        await self._trainer.delete_checkpoint(checkpoint.path)
        refusal.hint = f"{refusal.hint}; the previous step stays the latest".removeprefix("; ")
        raise refusal


async def _logged(job_id: str, write: Awaitable[None]) -> None:
    """Write what a job can do without: a failure is logged, and costs no trained step."""
    try:
        await write
    except Exception as error:  # noqa: BLE001 - a boundary: none of it is worth the step
        logger.warning("%s: something of its progress was not written: %s", job_id, error)


def _cancelled() -> TrainingFailed:
    return TrainingFailed("the job was cancelled", hint="its rollouts are as they were; train them again")
