"""What is told of a row that is not what was written: which one it is, and what is wrong with it.

A disk, a copy cut short or an editor may leave anything in a column. Whoever reads it then is told the row, instead of what
Python or SQLite stumbled over.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from pydantic import ValidationError

from art.errors import ArtError, Damaged

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
"""What reading a value raises that has another form than the one written."""
HINT = "`art sql` shows the row; bring the store back from a backup (art restore)"
MOST_TOLD = 3
"""Of what is wrong with one row."""

JSON_COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "rollouts": ("the rollout {rollout_id}", ("limits", "metrics", "metadata", "agent_rewards")),
    "calls": (
        "the call {call_id} of the rollout {rollout_id}",
        ("sampling_asked", "sampling_used", "blob", "text"),
    ),
    "choices": ("the choice {choice} of the call {call_id}", ("spans",)),
    "trained_choices": ("what was trained of the choice {choice} of the call {call_id}", ("blob",)),
    "logged_trajectories": ("what was logged of the rollout {rollout_id}", ("body",)),
    "models": ("the model {project}/{name}", ("config", "base", "notes")),
    "run_configs": ("the configuration of {project}/{name}", ("config", "origin")),
    "run_totals": ("the totals of {project}/{name}", ("totals",)),
    "checkpoints": ("the checkpoint {project}/{name}@{step}", ("info", "metrics")),
    "batches": ("the batch {batch} of {project}/{name}", ("metrics",)),
    "jobs": ("the job {job_id}", ("spec", "result", "error")),
    "history": ("what was logged with step {step} of {project}/{name}", ("data",)),
    "upstream_calls": ("the upstream call {call_id}", ("usage", "request", "answer")),
}
"""By table: what one of its rows is called, and the columns that hold JSON."""
_JSON = frozenset(name for _, names in JSON_COLUMNS.values() for name in names)
_OF_A_VALUE = ("malformed json", "could not decode")
"""In what SQLite says of a value, and not of the file."""


def reads(
    what: str,
) -> Callable[[Callable[Concatenate[sqlite3.Row, P], T]], Callable[Concatenate[sqlite3.Row, P], T]]:
    """Of a function that makes an object of a row: where it cannot, Damaged. `what` is formatted with the row's columns."""

    def decorate(
        function: Callable[Concatenate[sqlite3.Row, P], T],
    ) -> Callable[Concatenate[sqlite3.Row, P], T]:
        @functools.wraps(function)
        def read(row: sqlite3.Row, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(row, *args, **kwargs)
            except ArtError:
                raise
            except UNREADABLE as error:
                raise damaged(what.format_map(_Shown(row)), error, row) from error

        return read

    return decorate


@contextlib.contextmanager
def told(conn: sqlite3.Connection) -> Iterator[None]:
    """A boundary around what reads the store: what it stumbles over becomes Damaged, with the row where that can be found."""
    try:
        yield
    except ArtError:
        raise
    except sqlite3.OperationalError as error:
        if not any(said in str(error).lower() for said in _OF_A_VALUE):
            raise
        raise _somewhere(conn, error) from error
    except UNREADABLE as error:
        raise _somewhere(conn, error) from error


def damaged(what: str, error: Exception, row: sqlite3.Row | None = None) -> Damaged:
    """The error, with what is wrong in words; a server's log keeps where it was found, in case the row is not to blame."""
    logger.info("%s cannot be read", what, exc_info=error)
    broken = [] if row is None else [name for name in row.keys() if name in _JSON and not _is_json(row[name])]  # noqa: SIM118  a row iterates over its values
    if broken:
        cause = f"its {' and '.join(broken)} {'is' if len(broken) == 1 else 'are'} no JSON"
    elif isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_context=False, include_input=False)[:MOST_TOLD]
        cause = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in found)
    else:
        cause = f"{type(error).__name__}: {str(error)[:200]}"
    return Damaged(f"{what} cannot be read: the store is damaged there", cause=cause, hint=HINT)


def _somewhere(conn: sqlite3.Connection, error: Exception) -> Damaged:
    """Of a query over many rows: the first one that has no JSON where JSON was written, if the query's time allows."""
    for table, (what, columns) in JSON_COLUMNS.items():
        test = " AND ".join(f"COALESCE(json_valid({name}), 1)" for name in columns)
        with contextlib.suppress(sqlite3.Error):
            row = conn.execute(f"SELECT * FROM {table} WHERE NOT ({test}) LIMIT 1").fetchone()
            if row is not None:
                return damaged(what.format_map(_Shown(row)), error, row)
    return damaged("a row of the store", error)


def _is_json(text: Any) -> bool:
    if text is None:
        return True
    try:
        json.loads(text)
    except UNREADABLE:
        return False
    return True


class _Shown:
    """A row's columns for a sentence; what it lacks is a question mark."""

    def __init__(self, row: sqlite3.Row) -> None:
        self._row = row

    def __getitem__(self, name: str) -> str:
        try:
            return str(self._row[name])[:240]
        except LookupError:
            return "?"
