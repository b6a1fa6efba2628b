"""What people and the trainer say of what was recorded: notes, saved views, configurations of runs, advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from art.errors import InvalidInput
from art.store import call_rows, group_lists, remark_rows, rollout_lists, rollout_rows, trained_rows
from art.store.blobs import BlobStore
from art.store.database import Database
from art.store.records import CallText, RolloutRow
from art.store.redaction import Redaction
from art.store.sql import Conn, loads, one, rows
from art.store.traces import ChoiceTrace
from art.store.trained_rows import TrainedChoice
from art.types.tokens import CallRecord
from art.types.wire_views import GroupLine, Note, RolloutLine, RunConfig, SavedView


@dataclass(frozen=True, slots=True)
class Logged:
    """What was logged with a rollout's trajectory, the newest time that it was; empty where nothing was."""

    logs: list[str]
    metadata: dict[str, object]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything that was recorded of one rollout, without its token arrays."""

    row: RolloutRow
    calls: list[CallRecord]
    texts: dict[str, CallText]
    """By call id."""
    line: RolloutLine
    """As lists show it."""
    trained: dict[tuple[str, int], TrainedChoice]
    note: Note
    logged: Logged


class Remarks:
    """The part of a store that the dashboard writes, and reads one rollout whole."""

    def __init__(self, db: Database, blobs: BlobStore, redact: Redaction) -> None:
        self._db = db
        self._blobs = blobs
        self._redact = redact

    # -- one rollout

    async def conversation(self, rollout_id: str) -> Conversation:
        """NotFound when there is none."""

        def run(conn: Conn) -> Conversation:
            row = rollout_rows.get_rollout(conn, rollout_id)
            return _conversation(conn, row, rollout_lists.lines_of(conn, [rollout_id])[0])

        return await self._db.view(run)

    async def group(
        self, project: str, name: str, group_id: str, limit: int
    ) -> tuple[GroupLine, list[Conversation]]:
        """A group and its rollouts, at most `limit`. NotFound where the run has none of this name."""

        def run(conn: Conn) -> tuple[GroupLine, list[Conversation]]:
            group = group_lists.group_line(conn, project, name, group_id)
            found = rows(
                conn,
                "SELECT rollout_id FROM rollout_facts WHERE project = ? AND model = ? AND group_id = ?"
                " ORDER BY reward IS NULL, reward DESC, id LIMIT ?",
                project,
                name,
                group_id,
                limit,
            )
            lines = rollout_lists.lines_of(conn, [row["rollout_id"] for row in found])
            return group, [
                _conversation(conn, rollout_rows.get_rollout(conn, line.rollout_id), line) for line in lines
            ]

        return await self._db.view(run)

    async def trained(self, rollout_id: str) -> dict[tuple[str, int], TrainedChoice]:
        """What the trainer found of its choices."""
        return await self._db.read(lambda conn: trained_rows.trained_of(conn, rollout_id))

    async def add_traces(self, traces: Sequence[ChoiceTrace], step: int) -> int:
        """Keep what a step's trainer found; the number of choices. May be repeated."""
        return await self._db.write(lambda conn: trained_rows.add_trained(conn, self._blobs, traces, step))

    async def open_jobs(self) -> dict[str, int]:
        """How many jobs there are of each status that is not the last."""

        def run(conn: Conn) -> dict[str, int]:
            found = rows(
                conn,
                "SELECT status, COUNT(*) AS count FROM jobs WHERE status IN ('queued', 'running') GROUP BY status",
            )
            return {row["status"]: row["count"] for row in found}

        return await self._db.read(run)

    # -- of people

    async def put_note(self, rollout_id: str, project: str, note: Note, key_id: str) -> Note:
        """Leave a flag and a note; what is kept of them. InvalidInput where the project keeps no texts."""
        text = self._redact.content({"note": note.note}, project).get("note")
        if note.note and not isinstance(text, str):
            raise InvalidInput(
                f"the project {project} keeps no texts, and so no note",
                hint="leave the note out; the flag is kept",
            )
        kept = note.model_copy(update={"note": text or ""})
        return await self._db.write(lambda conn: remark_rows.put_note(conn, rollout_id, kept, key_id))

    async def saved(self, project: str) -> list[SavedView]:
        """By name."""
        return await self._db.read(lambda conn: remark_rows.list_saved(conn, project))

    async def put_saved(self, project: str, view: SavedView, key_id: str) -> None:
        """Keep a view under its name."""
        kept = view.model_copy(update=self._redact.report(view.model_dump(), project))
        await self._db.write(lambda conn: remark_rows.put_saved(conn, project, kept, key_id))

    async def delete_saved(self, project: str, name: str) -> bool:
        """False when there was none."""
        return await self._db.write(lambda conn: remark_rows.delete_saved(conn, project, name))

    async def put_run_config(self, project: str, name: str, config: RunConfig) -> None:
        """Keep the resolved configuration of a model's newest run."""
        kept = RunConfig(config=self._redact.report(config.config, project), origin=config.origin)
        await self._db.write(lambda conn: remark_rows.put_run_config(conn, project, name, kept))

    async def run_config(self, project: str, name: str) -> RunConfig | None:
        """None where nobody told any."""
        return await self._db.read(lambda conn: remark_rows.get_run_config(conn, project, name))


def _conversation(conn: Conn, row: RolloutRow, line: RolloutLine) -> Conversation:
    texts = rows(conn, "SELECT call_id, rollout_id, text FROM calls WHERE rollout_id = ?", row.rollout_id)
    return Conversation(
        row=row,
        line=line,
        calls=call_rows.calls_of(conn, row.rollout_id),
        texts={item["call_id"]: call_rows.text_in(item) for item in texts},
        trained=trained_rows.trained_of(conn, row.rollout_id),
        note=remark_rows.get_note(conn, row.rollout_id),
        logged=_logged(conn, row),
    )


def _logged(conn: Conn, row: RolloutRow) -> Logged:
    found = one(
        conn,
        "SELECT body FROM logged_trajectories WHERE rollout_id = ? AND project = ? ORDER BY id DESC LIMIT 1",
        row.rollout_id,
        row.project,
    )
    body = {} if found is None else loads(found["body"])
    return Logged(logs=[str(line) for line in body.get("logs") or ()], metadata=body.get("metadata") or {})
