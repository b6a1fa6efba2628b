"""`art sql`: read-only queries over a folder's store."""

from __future__ import annotations

import contextlib
import csv
import difflib
import io
import itertools
import re
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli._output import QueryResult, json_text
from art.cli._served import AsJson, ReadPath, folder_of
from art.cli._store import open_store
from art.cli._text import Column, is_terminal, table
from art.cli._time_limit import ends_within
from art.cli._units import count_option, span_option
from art.cli._usage import WrongUsage
from art.errors import DeadlineExceeded, InfraError, InvalidInput, NotFound

JSON = "art.cli._output:QueryResult"
STABLE = ("models", "checkpoints", "rollouts", "calls", "choices", "jobs", "batches", "history")
"""Tables whose columns keep their names and meanings from release to release; new ones may be added."""
MAX_BYTES = 64 << 20
"""Of one text or blob that a query makes, and of all that it finds: what a store holds is far smaller."""
LONGEST_PATTERN = 1_000
"""Of LIKE and GLOB, in bytes: each star more multiplies the time that one comparison takes."""
LOOK_EVERY = 2_000
"""Instructions of SQLite between two looks at the clock; about a millisecond."""
PIECE = 1 << 15
"""Characters written at once: a reader that goes away is noticed at the next piece."""
WIDEST = 60
"""Cells of a column on a terminal."""
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_REFUSED_FUNCTIONS = {"load_extension", "fts3_tokenizer"}
_UNSHOWN = {("keys", "sha256")}
"""Columns that read as NULL: a hash of a key is for comparing keys with, and for nothing else."""
_HINT = "SELECT ... or WITH ... SELECT; art sql --tables shows what there is"
TABLES = """SELECT m.name, c.name, c.type FROM sqlite_schema AS m, pragma_table_info(m.name) AS c
WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY m.name, c.cid"""


def command(
    query: Annotated[
        str | None, typer.Argument(help="One SELECT, in SQLite's dialect.", metavar="SELECT")
    ] = None,
    *,
    tables: Annotated[
        bool, typer.Option("--tables", help="Show tables and columns; * marks the stable ones.")
    ] = False,
    limit: Annotated[int, count_option("Rows at most.", at_least=1)] = 1000,
    timeout: Annotated[float, span_option("How long a query may take.")] = 30.0,
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV with a head.")] = False,
    path: ReadPath = None,
    as_json: AsJson = False,
) -> None:
    """Query a folder's store with SQL. Nothing can be changed, and the server may run meanwhile.

    JSON columns are read with SQLite's functions: json_extract(metrics, '$.turns'). Times are seconds since 1970.

    Examples:

      art sql "SELECT status, count(*), avg(reward) FROM rollouts GROUP BY status"

      art sql "SELECT step, json_extract(metrics, '$.\"loss/train\"') FROM batches" --csv --path runs
    """
    if tables == (query is not None):
        raise WrongUsage("give a query, or --tables", hint=_HINT)
    if as_csv and as_json:
        raise WrongUsage("--csv and --json are two forms", hint="give one of them")
    folder = folder_of(path)
    # What is written is made inside too: the wait for who reads it is theirs, and has no limit.
    with ends_within(timeout, _too_long(timeout), as_json=as_json):
        with contextlib.closing(_opened(folder)) as conn:
            found = _tables(conn) if query is None else select(conn, query, limit=limit, seconds=timeout)
        text = json_text(found) if as_json else _as_csv(found) if as_csv else _as_table(found)
    for start in range(0, len(text), PIECE):
        typer.echo(text[start : start + PIECE], nl=False)
    typer.echo()
    if found.truncated:
        typer.echo(f"only the first {limit:,} rows are shown; --limit 10k shows more", err=True)


def _opened(folder: Path) -> sqlite3.Connection:
    try:
        return open_store(folder)
    except FileNotFoundError:
        raise NotFound(
            f"{folder} is no server's folder",
            hint="name it with --path: the folder of art serve, or of LocalBackend",
        ) from None
    except sqlite3.Error as error:
        raise InfraError(f"the store of {folder} cannot be opened", cause=str(error)) from error


def select(conn: sqlite3.Connection, query: str, *, limit: int, seconds: float) -> QueryResult:
    """Rows of one SELECT. InvalidInput for what is none, DeadlineExceeded past `seconds`."""
    give_up = time.monotonic() + seconds
    conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
    conn.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LONGEST_PATTERN)
    conn.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    conn.set_authorizer(_may)
    conn.set_progress_handler(lambda: time.monotonic() > give_up, LOOK_EVERY)
    try:
        cursor = conn.execute(query)
        if cursor.description is None:
            raise InvalidInput("that is no query", hint=_HINT)
        rows = _bounded(itertools.islice(cursor, limit + 1))
    except sqlite3.OperationalError as error:
        if str(error) == "interrupted":
            if time.monotonic() <= give_up:
                raise KeyboardInterrupt from None
            raise _too_long(seconds) from error
        raise _wrong(conn, error) from error
    except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
        raise _wrong(conn, error) from error
    columns = [str(column[0]) for column in cursor.description]
    return QueryResult(columns=columns, rows=rows[:limit], truncated=len(rows) > limit)


def _too_long(seconds: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the query took longer than {seconds:g} s", hint="a WHERE or a LIMIT, or a longer --timeout"
    )


def _bounded(found: Iterable[tuple[Any, ...]]) -> list[list[str | int | float | None]]:
    """As cells. InvalidInput when all of them together are larger than one may be."""
    rows, held = [], 0
    for row in found:
        held += sum(len(value) for value in row if isinstance(value, str | bytes))
        if held > MAX_BYTES:
            raise InvalidInput(
                f"the result is larger than {MAX_BYTES >> 20} MiB",
                hint="fewer rows or columns, or the beginning of a text: substr(text, 1, 1000)",
            )
        rows.append([_cell(value) for value in row])
    return rows


def _may(
    action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
) -> int:
    """SQLite's authorizer: what only reads is allowed, and nothing else is."""
    if action == sqlite3.SQLITE_READ and (first, second) in _UNSHOWN:
        return sqlite3.SQLITE_IGNORE
    if action == sqlite3.SQLITE_FUNCTION:
        refused = second in _REFUSED_FUNCTIONS
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _wrong(conn: sqlite3.Connection, error: Exception) -> InvalidInput:
    """What is wrong with a query, in words."""
    said = str(error)
    if "not authorized" in said or "prohibited" in said:
        return InvalidInput("art sql only reads", cause=said, hint=_HINT)
    hint = _HINT
    if (missing := re.search(r"no such (table|column): (\S+)", said)) is not None:
        wanted = missing[2].rpartition(".")[2]
        known = _names(conn, tables=missing[1] == "table")
        near = difflib.get_close_matches(wanted, known, n=1)
        if wanted in known:  # a column, of tables that the query does not name
            tables = [str(row[0]) for row in _tables(conn).rows if row[1] == wanted]
            hint = f"{wanted} is a column of {', '.join(tables)}. {_HINT}"
        elif near:
            hint = f"did you mean {near[0]}? {_HINT}"
    return InvalidInput(f"the query cannot be run: {said}", hint=hint)


def _names(conn: sqlite3.Connection, *, tables: bool) -> list[str]:
    """Of all tables, or of all columns."""
    return sorted({str(row[0] if tables else row[1]) for row in _tables(conn).rows})


def _tables(conn: sqlite3.Connection) -> QueryResult:
    """Every column of every table."""
    conn.set_authorizer(None)
    found = conn.execute(TABLES).fetchall()
    rows = [[str(name), str(column), str(kind), int(name in STABLE)] for name, column, kind in found]
    return QueryResult(columns=["table", "column", "type", "stable"], rows=rows, truncated=False)


def _cell(value: Any) -> str | int | float | None:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value


def _as_csv(found: QueryResult) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([found.columns, *found.rows])
    return written.getvalue().removesuffix("\n")


def _as_table(found: QueryResult) -> str:
    """Columns; numbers to the right."""
    numbers = [
        bool(found.rows) and all(isinstance(row[place], int | float | None) for row in found.rows)
        for place in range(len(found.columns))
    ]
    columns = [
        Column(title, "right" if right else "left", stretch=not right)
        for title, right in zip(found.columns, numbers, strict=True)
    ]
    rows = [["" if value is None else str(value) for value in row] for row in found.rows]
    return "\n".join(table(columns, rows, widest=WIDEST if is_terminal() else None))
