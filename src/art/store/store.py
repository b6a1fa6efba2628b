"""The server's memory: one SQLite file for what is queried, blob files for token arrays.

Every method returns after its change is committed. Every text and every token array passes the redaction
before it is written; ids, counts, rewards, statuses and times are stored as they are.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from art.store import (
    call_rows,
    job_changes,
    job_rows,
    key_rows,
    model_rows,
    redaction,
    rollout_rows,
    upstream_rows,
)
from art.store.accounts import Accounts
from art.store.blobs import BlobStore, blob_path
from art.store.changes import Change
from art.store.database import Database, store_error
from art.store.keeping import Keeping
from art.store.purge import PurgeFilter
from art.store.records import (
    AuditRow,
    CallText,
    CheckpointRow,
    IdempotencyRow,
    JobRow,
    KeyRow,
    LoggedTrajectory,
    ModelRow,
    Outcomes,
    RewardChange,
    RolloutFilter,
    RolloutRow,
)
from art.store.redaction import KeepEverything, Redaction
from art.store.remarks import Remarks
from art.store.run_log import RunLog
from art.store.sql import Conn
from art.types.jobs import CheckpointInfo
from art.types.policy import RolloutStatus
from art.types.tokens import BlobRef, CallRecord
from art.types.upstreams import UpstreamCall, UpstreamCallText
from art.types.wire import JobEvent, JobResult
from art.types.wire_purge import Purged

DATABASE = "art.db"
BLOBS = "blobs"
V = TypeVar("V")


class Store:
    """Opened once per folder (`server/`). All methods may be called from any task of one event loop."""

    def __init__(self, root: Path, redact: Redaction, database: Database | None = None) -> None:
        self.root = root
        self.blobs = BlobStore(root / BLOBS)
        self._db = database or Database(root / DATABASE)
        self.accounts = Accounts(self._db)
        self._redact = redact
        self.keeping = Keeping(self._db, self.blobs)
        self.run_log = RunLog(self._db, redact)
        self.remarks = Remarks(self._db, self.blobs, redact)

    @classmethod
    async def open(cls, root: Path, *, redact: Redaction | None = None) -> Store:
        """Open or create the store under `root`; ConfigError when a newer release wrote it."""
        store = cls(root, redact or KeepEverything())
        await asyncio.to_thread(store._start)
        return store

    def _start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        os.chmod(self.root, 0o700)
        self._db.open()

    async def close(self) -> None:
        """Finish the writes that wait, then close."""
        await asyncio.to_thread(self._db.close)

    async def view(self, query: Callable[[Conn], V]) -> V:
        """What a query of the lists finds (`rollout_lists`, `run_lists` and the like)."""
        return await self._db.view(query)

    def watch(self, tell: Callable[[Sequence[Change]], None]) -> None:
        """Have every commit told, on the store's own thread; `tell` must neither wait nor raise."""
        self._db.changes.tell = tell

    @property
    def work(self) -> tuple[int, int]:
        """Reads and writes that are not done, and those that are."""
        return self._db.work

    async def put_model(self, model: ModelRow) -> ModelRow:
        """Insert a model; one that exists is returned as it stands."""
        return await self._db.write(lambda conn: model_rows.put_model(conn, model))

    async def get_model(self, project: str, name: str) -> ModelRow | None:
        return await self._db.read(lambda conn: model_rows.get_model(conn, project, name))

    async def list_models(self) -> list[ModelRow]:
        return await self._db.read(model_rows.list_models)

    async def put_checkpoint(
        self, info: CheckpointInfo, metrics: dict[str, float] | None = None, job_id: str | None = None
    ) -> int:
        """Record a published step and make it the model's latest; returns the latest. Idempotent."""
        return await self._db.write(lambda conn: model_rows.put_checkpoint(conn, info, metrics or {}, job_id))

    async def list_checkpoints(self, project: str, name: str) -> list[CheckpointRow]:
        """Oldest first, without deleted ones."""
        return await self._db.read(lambda conn: model_rows.list_checkpoints(conn, project, name))

    async def remove_checkpoint(self, project: str, name: str, step: int) -> bool:
        """Forget a step; False when there was none. Conflict when it is the latest."""
        return await self._db.write(lambda conn: model_rows.remove_checkpoint(conn, project, name, step))

    async def set_latest(self, project: str, name: str, step: int) -> None:
        """Make a step that is there the model's latest. Conflict while a job is open, NotFound once deleted."""
        await self._db.write(lambda conn: model_rows.set_latest(conn, project, name, step))

    async def require_idle(self, project: str, name: str) -> None:
        """Conflict while a job of the model is open."""
        await self._db.read(lambda conn: model_rows.require_idle(conn, project, name))

    async def deleted_steps(self, project: str, name: str) -> set[int]:
        """Steps that were deleted, whether or not their files were."""
        return await self._db.read(lambda conn: model_rows.deleted_steps(conn, project, name))

    async def last_step(self, project: str, name: str) -> int:
        """The highest step that the model ever published, deleted ones included; 0 without any."""
        return await self._db.read(lambda conn: model_rows.last_step(conn, project, name))

    async def add_history(
        self,
        *,
        project: str,
        name: str,
        step: int,
        recorded_at: str,
        data: dict[str, Any],
        trajectories: list[LoggedTrajectory],
        outcomes: Outcomes,
    ) -> bool:
        """`run_log.add`; False when the row is there already."""
        kept = await self.run_log.add(
            data,
            project=project,
            name=name,
            step=step,
            recorded_at=recorded_at,
            trajectories=trajectories,
            outcomes=outcomes,
        )
        return kept.new

    async def list_history(self, project: str, name: str) -> list[dict[str, Any]]:
        return await self._db.read(lambda conn: model_rows.list_history(conn, project, name))

    async def list_logged(self, project: str, name: str, step: int) -> list[LoggedTrajectory]:
        return await self._db.read(lambda conn: model_rows.list_logged(conn, project, name, step))

    # -- rollouts

    async def open_rollout(self, rollout: RolloutRow) -> RolloutRow:
        """Insert a rollout; one with this id is returned as it stands (Conflict when it is another model's)."""
        kept = redaction.kept_metadata(self._redact, rollout, rollout.project)
        return await self._db.write(lambda conn: rollout_rows.open_rollout(conn, kept))

    async def find_rollout(self, rollout_id: str) -> RolloutRow | None:
        return await self._db.read(lambda conn: rollout_rows.find_rollout(conn, rollout_id))

    async def get_rollout(self, rollout_id: str) -> RolloutRow:
        """NotFound when there is none."""
        return await self._db.read(lambda conn: rollout_rows.get_rollout(conn, rollout_id))

    async def list_rollouts(self, wanted: RolloutFilter) -> list[RolloutRow]:
        """Newest first, at most `wanted.limit`."""
        return await self._db.read(lambda conn: rollout_rows.list_rollouts(conn, wanted))

    async def set_reward(self, change: RewardChange) -> RolloutRow:
        """Keep rewards, and force the rollout's tokens to the disk before they count as kept."""

        def run(conn: Conn) -> RolloutRow:
            project = rollout_rows.get_rollout(conn, change.rollout_id).project
            row = rollout_rows.set_reward(conn, redaction.kept_metadata(self._redact, change, project))
            self.blobs.sync(blob_path(row.project, row.rollout_id))
            return row

        return await self._db.write(run)

    async def finish_rollout(
        self, rollout_id: str, status: RolloutStatus = RolloutStatus.FINISHED, reason: str = ""
    ) -> RolloutRow:
        """End a running rollout; one that has ended keeps its status."""

        def run(conn: Conn) -> RolloutRow:
            project = rollout_rows.get_rollout(conn, rollout_id).project
            keep = self._redact.content if status is RolloutStatus.AGENT_ERROR else self._redact.report
            row = rollout_rows.finish_rollout(conn, rollout_id, status, keep(reason, project) or "")
            self.blobs.sync(blob_path(row.project, rollout_id))
            return row

        return await self._db.write(run)

    async def interrupt_running(self, reason: str) -> int:
        """Make every running rollout an infra_error; the number of them. Called once, at start."""
        return await self._db.write(lambda conn: rollout_rows.interrupt_running(conn, reason))

    async def set_outcomes(self, outcomes: Outcomes) -> None:
        """Statuses and fates in one transaction."""
        await self._db.write(lambda conn: rollout_rows.set_outcomes(conn, outcomes))

    async def add_call(
        self, call: CallRecord, *, arrays: dict[str, np.ndarray], text: CallText, project: str | None = None
    ) -> CallRecord:
        """Append the token arrays, then commit the call's row that names them.

        Arrays: `prompt_token_ids` int32 [P]; per choice i `c{i}.token_ids` int32 [T],
        `c{i}.logprobs` float32 [T], optionally `c{i}.trainable` bool [T]. `project`: whose rule of redaction holds; None is
        the server's own.
        """
        kept = await redaction.kept_call(self._redact, call, text, project)

        def run(conn: Conn) -> CallRecord:
            rollout = rollout_rows.get_rollout(conn, call.rollout_id)
            hides = kept.hides or call_rows.is_hidden(conn, call.parent_call_id)
            path = blob_path(rollout.project, call.rollout_id)
            ref = self.blobs.append(
                path, redaction.with_true_text(arrays, text) if hides else arrays, sealed=hides
            )
            stored = rollout_rows.decided(kept.call.model_copy(update={"blob": ref}), rollout.status)
            call_rows.add_call(conn, stored, kept.text, heard=text)
            return stored

        return await self._db.write(run)

    async def get_call(self, call_id: str) -> CallRecord | None:
        return await self._db.read(lambda conn: call_rows.get_call(conn, call_id))

    async def calls_of(self, rollout_id: str) -> list[CallRecord]:
        """A rollout's calls in the order they were recorded."""
        return await self._db.read(lambda conn: call_rows.calls_of(conn, rollout_id))

    async def judge(self, rollout_id: str, verdicts: Mapping[str, str | None]) -> None:
        """Per call, why it is a call on the side, or None for one that is not."""
        await self._db.write(lambda conn: call_rows.judge(conn, rollout_id, verdicts))

    async def set_finish_reasons(self, call_id: str, reasons: Mapping[int, str]) -> None:
        """How the choices of a call ended for the client, once that is known."""
        await self._db.write(lambda conn: call_rows.set_finish_reasons(conn, call_id, reasons))

    async def recent_calls(self, project: str, model: str, limit: int) -> list[call_rows.Answered]:
        """A model's newest calls with their completions, newest first."""
        return await self._db.read(lambda conn: call_rows.recent_calls(conn, project, model, limit))

    async def text_of(self, call_id: str) -> CallText:
        """NotFound when there is no such call."""
        return await self._db.read(lambda conn: call_rows.text_of(conn, call_id))

    async def history_of(self, call_id: str) -> list[dict[str, Any]]:
        """All messages that a call was given, oldest first, in OpenAI's form; none when there is no such call."""
        return await self._db.read(lambda conn: call_rows.history_of(conn, call_id))

    async def read_arrays(self, ref: BlobRef) -> dict[str, np.ndarray]:
        """The token arrays of a call; InvalidInput when the file is damaged."""
        return await asyncio.to_thread(self.blobs.read, ref)

    async def add_job_arrays(self, path: str, arrays: dict[str, np.ndarray]) -> BlobRef:
        """Keep token arrays that a job brings with it, in a file of its own; on the disk on return."""
        sealed = self._redact.seals(path.partition("/")[0])

        def run() -> BlobRef:
            try:
                ref = self.blobs.append(path, arrays, sealed=sealed)
                self.blobs.sync(path)
            except OSError as error:
                raise store_error(error) from error
            return ref

        return await asyncio.to_thread(run)

    # -- calls to upstreams

    async def add_upstream_call(
        self, call: UpstreamCall, *, project: str | None, key_id: str, request: Any, answer: Any
    ) -> None:
        """Keep a call that was passed on. `request` and `answer` are JSON-like; None where there is none."""
        text = await redaction.kept_content(self._redact, {"request": request, "answer": answer}, project)
        kept = call.model_copy(update={"error": self._redact.report(call.error, project)})
        await self._db.write(
            lambda conn: upstream_rows.add(conn, kept, project=project, key_id=key_id, text=text)
        )

    async def upstream_calls_of(self, rollout_id: str, project: str) -> list[UpstreamCall]:
        """A rollout's calls to upstreams in the order they ended."""
        return await self._db.read(lambda conn: upstream_rows.of_rollout(conn, rollout_id, project))

    async def upstream_texts_of(self, rollout_id: str, project: str) -> list[UpstreamCallText]:
        """The same, with what was asked and answered."""
        return await self._db.read(lambda conn: upstream_rows.text_of_rollout(conn, rollout_id, project))

    async def submit_job(
        self,
        job: JobRow,
        *,
        rewards: Sequence[RewardChange] = (),
        idempotency: IdempotencyRow | None = None,
    ) -> JobRow:
        """Insert a job with its `queued` event and the rewards it came with, and end its running rollouts.

        The same idempotency key returns the job it made before and changes nothing.
        """
        kept = [redaction.kept_metadata(self._redact, item, job.info.project) for item in rewards]
        return await self._db.write(lambda conn: job_changes.submit(conn, job, kept, idempotency))

    async def get_job(self, job_id: str) -> JobRow:
        """NotFound when there is none."""
        return await self._db.read(lambda conn: job_rows.get_job(conn, job_id))

    async def open_jobs(self) -> list[JobRow]:
        """Queued and running jobs, oldest first."""
        return await self._db.read(job_rows.open_jobs)

    async def start_job(self, job_id: str, event: str = "started") -> JobRow:
        """Mark a job running and give it its place: batch number and parent step."""
        return await self._db.write(lambda conn: job_changes.start(conn, job_id, event))

    async def count_attempt(self, job_id: str) -> None:
        """The trainer has taken up the job once more."""
        await self._db.write(lambda conn: job_rows.count_attempt(conn, job_id))

    async def cancel_job(self, job_id: str) -> JobRow:
        """A queued job is cancelled at once; for a running one the wish is recorded."""
        return await self._db.write(lambda conn: job_changes.cancel(conn, job_id))

    async def fail_job(self, job_id: str, *, status: str, error: dict[str, str]) -> JobRow:
        """End a job as `failed` or `cancelled`. Nothing it was given is lost: its rollouts stay as they were."""

        def run(conn: Conn) -> JobRow:
            told = self._redact.report(error, job_rows.get_job(conn, job_id).info.project)
            return job_rows.end_job(conn, job_id, status=status, result=None, error=told)

        job = await self._db.write(run)
        await self.keeping.settle()
        return job

    async def complete_job(self, job_id: str, result: JobResult, outcomes: Outcomes) -> JobRow:
        """Success: result, statuses, fates, batch counter and event become true together."""
        job = await self._db.write(lambda conn: job_changes.complete(conn, job_id, result, outcomes))
        await self.keeping.settle()
        return job

    async def add_event(self, job_id: str, kind: str, data: dict[str, Any]) -> JobEvent:
        return await self._db.write(lambda conn: job_rows.add_event(conn, job_id, kind, data))

    async def events_after(self, job_id: str, after: int) -> list[JobEvent]:
        return await self._db.read(lambda conn: job_rows.events_after(conn, job_id, after))

    # -- keys and audit

    async def put_key(self, key: KeyRow) -> None:
        await self._db.write(lambda conn: key_rows.put_key(conn, key))

    async def get_key(self, key_id: str) -> KeyRow | None:
        return await self._db.read(lambda conn: key_rows.get_key(conn, key_id))

    async def list_keys(self) -> list[KeyRow]:
        """Oldest first, without the keys of single rollouts."""
        return await self._db.read(key_rows.list_keys)

    async def drop_expired_keys(self) -> int:
        return await self._db.write(key_rows.drop_expired)

    async def claim(self, row: IdempotencyRow) -> str:
        """The ref of the key: the one given, or the earlier one; Conflict when the request was another."""
        return await self._db.write(lambda conn: job_rows.claim(conn, row))

    async def add_audit(self, entry: AuditRow) -> None:
        await self._db.write(lambda conn: key_rows.add_audit(conn, entry))

    async def list_audit(self, limit: int = 1000, *, before: int | None = None) -> list[AuditRow]:
        """Newest first; with `before` those older than that id."""
        return await self._db.read(lambda conn: key_rows.list_audit(conn, limit, before))

    async def purge(self, wanted: PurgeFilter, *, dry_run: bool = False) -> Purged:
        """Delete what the filter names, for good, and tell what it was; with `dry_run` only tell. May be repeated."""
        return await self.keeping.purge(wanted, dry_run=dry_run)
