"""What programs log of a run: rows of figures with the trajectories behind them, and what the rows come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from art.store import model_rows, redaction, rollout_rows
from art.store.database import Database
from art.store.records import LoggedTrajectory, Outcomes
from art.store.redaction import Redaction
from art.store.sql import Conn


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A history row as it is kept."""

    data: dict[str, Any]
    new: bool
    """False: it was there already, and nothing changed."""


class RunLog:
    """A part of the store. Every method returns after its change is committed."""

    def __init__(self, database: Database, redact: Redaction) -> None:
        self._db = database
        self._redact = redact

    async def add(
        self,
        data: dict[str, Any],
        *,
        project: str,
        name: str,
        step: int,
        recorded_at: str,
        trajectories: list[LoggedTrajectory],
        outcomes: Outcomes,
    ) -> KeptRow:
        """Append a history row, its trajectories and their outcomes. A row that is there already is returned as it stands.

        The row that is kept has the sums of its figures over the run too.
        """
        kept = [await redaction.kept_trajectory(self._redact, item) for item in trajectories]

        def run(conn: Conn) -> KeptRow:
            stored, new = model_rows.add_history(
                conn,
                data,
                project=project,
                name=name,
                step=step,
                recorded_at=recorded_at,
                trajectories=kept,
            )
            if new:
                rollout_rows.set_outcomes(conn, outcomes, waiting_only=True)
            return KeptRow(stored, new)

        return await self._db.write(run)
