"""What the trainer found of each choice, in SQL: its advantage, and where its log-probabilities lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from art.store.blobs import BlobStore, blob_path
from art.store.damage import reads
from art.store.sql import Conn, Row, insert, one, rows
from art.store.traces import ChoiceTrace
from art.types.tokens import BlobRef


@dataclass(frozen=True, slots=True)
class TrainedChoice:
    """Of the newest step that trained it."""

    call_id: str
    choice: int
    step: int
    advantage: float | None
    blob: BlobRef | None
    """With an array under `array_name`; None where no log-probability was kept."""


def array_name(call_id: str, choice: int) -> str:
    """Of a choice's log-probabilities in its rollout's record."""
    return f"{call_id}/{choice}"


def add_trained(conn: Conn, blobs: BlobStore, traces: Sequence[ChoiceTrace], step: int) -> int:
    """Keep traces beside the tokens of their rollouts; the number that belongs to a call which is there.

    Repeating it changes nothing that is read.
    """
    by_rollout: dict[tuple[str, str], list[ChoiceTrace]] = {}
    for trace in traces:
        row = one(
            conn,
            "SELECT rollout_id, project FROM calls JOIN rollouts USING (rollout_id) WHERE call_id = ?",
            trace.call_id,
        )
        if row is not None:  # purged meanwhile otherwise
            by_rollout.setdefault((row["project"], row["rollout_id"]), []).append(trace)
    for (project, rollout_id), mine in by_rollout.items():
        arrays = {
            array_name(trace.call_id, trace.choice): trace.logprobs for trace in mine if len(trace.logprobs)
        }
        ref = blobs.append(blob_path(project, rollout_id), arrays) if arrays else None
        for trace in mine:
            kept = ref if len(trace.logprobs) else None
            values = {
                "call_id": trace.call_id,
                "choice": trace.choice,
                "step": step,
                "advantage": trace.advantage,
                "blob": None if kept is None else kept.model_dump_json(),
            }
            insert(conn, "trained_choices", values, replace=("call_id", "choice"))
    return sum(len(mine) for mine in by_rollout.values())


def trained_of(conn: Conn, rollout_id: str) -> dict[tuple[str, int], TrainedChoice]:
    """Of a rollout's choices, by call and index."""
    found = rows(
        conn,
        "SELECT trained_choices.* FROM trained_choices JOIN calls USING (call_id) WHERE rollout_id = ?"
        " ORDER BY number, choice",
        rollout_id,
    )
    return {(row["call_id"], row["choice"]): _trained(row) for row in found}


@reads("what was trained of the choice {choice} of the call {call_id}")
def _trained(row: Row) -> TrainedChoice:
    return TrainedChoice(
        call_id=row["call_id"],
        choice=row["choice"],
        step=row["step"],
        advantage=row["advantage"],
        blob=None if row["blob"] is None else BlobRef.model_validate_json(row["blob"]),
    )
