"""What a commit changed, told to whoever shows it: triggers of the writer's own connection, which no other one has.

So every write is heard of, whichever function made it, and nobody has to remember to tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from art.store.sql import Conn

logger = logging.getLogger(__name__)

Kind = Literal["rollout", "step", "checkpoint", "job", "log", "sampled", "resync"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as it was."""

    kind: Kind
    """`step` is a train call that ended, `log` a row of figures; `sampled` is a choice that was recorded;
    `resync` says that anything may have."""
    project: str
    name: str
    """Of the model."""
    id: str
    status: str
    step: int | None
    """Of `sampled` the number of its tokens."""


FUNCTION = "art_changed"
_ROLLOUT = f"SELECT {FUNCTION}('rollout', project, model, rollout_id, status, step) FROM rollouts"
_NEW_ROLLOUT = f"SELECT {FUNCTION}('rollout', NEW.project, NEW.model, NEW.rollout_id, NEW.status, NEW.step)"
_JOB = f"SELECT {FUNCTION}('job', project, name, job_id, status, parent_step) FROM jobs"
_CHECKPOINT = (
    f"SELECT {FUNCTION}('checkpoint', NEW.project, NEW.name, NEW.step,"
    " iif(NEW.deleted_at IS NULL, 'published', 'deleted'), NEW.step)"
)
_STEP = f"SELECT {FUNCTION}('step', NEW.project, NEW.name, NEW.batch, iif(NEW.published, 'published', ''), NEW.step)"
TRIGGERS: dict[str, str] = {
    "INSERT ON rollouts": _NEW_ROLLOUT,
    "UPDATE OF status, reward ON rollouts": _NEW_ROLLOUT,
    "INSERT ON calls": f"{_ROLLOUT} WHERE rollout_id = NEW.rollout_id",
    "INSERT ON choices": f"SELECT {FUNCTION}('sampled', '', '', NEW.choice, NEW.finish_reason, NEW.token_count)",
    "INSERT ON notes": f"{_ROLLOUT} WHERE rollout_id = NEW.rollout_id",
    "UPDATE ON notes": f"{_ROLLOUT} WHERE rollout_id = NEW.rollout_id",
    "DELETE ON notes": f"{_ROLLOUT} WHERE rollout_id = OLD.rollout_id",
    "INSERT ON batches": _STEP,
    "UPDATE ON batches": _STEP,
    "INSERT ON checkpoints": _CHECKPOINT,
    "UPDATE ON checkpoints": _CHECKPOINT,
    "UPDATE OF step ON models": (
        f"SELECT {FUNCTION}('checkpoint', NEW.project, NEW.name, NEW.step, 'latest', NEW.step)"
    ),
    "INSERT ON jobs": f"{_JOB} WHERE job_id = NEW.job_id",
    "UPDATE ON jobs": f"{_JOB} WHERE job_id = NEW.job_id",
    "INSERT ON job_events": f"{_JOB} WHERE job_id = NEW.job_id",
    "INSERT ON history": f"SELECT {FUNCTION}('log', NEW.project, NEW.name, NEW.id, '', NEW.step)",
}
"""By what happens, the statement that tells of it."""


class Changes:
    """Gathers what a transaction changes. Lives on the writer's thread; `tell` is called there, after the commit."""

    def __init__(self) -> None:
        self.tell: Callable[[Sequence[Change]], None] | None = None
        """Must neither wait nor raise; None: nobody listens."""
        self._open: list[Change] = []

    def attach(self, conn: Conn) -> None:
        """Listen to what this connection writes."""
        conn.create_function(FUNCTION, 6, self._note)
        for number, (event, statement) in enumerate(TRIGGERS.items()):
            conn.execute(f"CREATE TEMP TRIGGER art_change_{number} AFTER {event} BEGIN {statement}; END")

    def committed(self) -> None:
        """What was gathered is true now."""
        gathered, self._open = self._open, []
        if gathered and self.tell is not None:
            self.tell(gathered)

    def discard(self) -> None:
        """It was rolled back. (A single write of a group that was is told all the same: who looks sees what there is.)"""
        self._open = []

    def _note(self, *values: object) -> None:
        kind, project, name, key, status, step = values
        self._open.append(
            Change(
                kind=cast(Kind, kind),
                project=str(project),
                name=str(name),
                id=str(key),
                status=str(status),
                step=step if isinstance(step, int) else None,
            )
        )
