"""A database file that somebody handed over: what it may not make those do who only look into it.

A schema is a program: a view in place of a table runs whatever query it was given, a generated column whatever expression,
for ever if need be. So a file is read only where its tables are those that this release, or the one that wrote it, makes.
What else is set is what SQLite advises for files from elsewhere (sqlite.org/security.html), but `trusted_schema = OFF`: an
index of ours has json_extract in it, which older releases of SQLite refuse then; and a schema that is ours is to be trusted.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3

from art.errors import Damaged
from art.store.schema import MIGRATIONS, migrate, schema_version

LARGEST_BYTES = 256 << 20
"""Of one text or blob that is read: the largest body that a server takes by default is a quarter of it."""
SHADOW = "rollout_words_"
"""Begins the names of the tables that SQLite itself makes for the index of words; each release may make them otherwise."""

Schema = dict[str, tuple[str, str]]
"""By name, an object's kind and the statement that makes it."""


def harden(conn: sqlite3.Connection) -> None:
    """Let the connection write nothing, read nothing huge, and look at each page whether it can be one."""
    for setting in ("query_only = ON", "cell_size_check = ON"):
        conn.execute(f"PRAGMA {setting}")
    conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_BYTES)


def require_ours(conn: sqlite3.Connection, file: object) -> None:
    """Damaged where the file's tables are not those of a store of its version. Reads the schema alone, which runs nothing."""
    found = _schema(conn)
    kind, text = found.get("schema_version", ("", ""))
    if found and (kind != "table" or text != _expected(0)["schema_version"][1]):
        raise _not_ours(file, "its schema_version is not the table that ART makes")
    version = schema_version(conn)
    if not found or version > len(MIGRATIONS):
        return  # empty, or of a newer release: others say so
    expected = _expected(version)
    for name, (kind, text) in sorted(found.items()):
        ours = expected.get(name)
        if kind == "trigger" and ours is None:
            raise _not_ours(file, f"it has a trigger {name[:80]!r}, which no store has")
        if ours is not None and not _same(name, (kind, text), ours):
            raise _not_ours(file, f"its {kind} {name!r} is not the {ours[0]} that ART makes")


def _same(name: str, found: tuple[str, str], ours: tuple[str, str]) -> bool:
    if name.startswith(SHADOW):
        return found[0] == ours[0] and not {"AS", "GENERATED", "VIRTUAL"} & set(found[1].upper().split())
    return found == ours


@functools.cache
def _expected(version: int) -> Schema:
    """Of a store of this version."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        migrate(conn, MIGRATIONS[:version])
        return _schema(conn)


def _schema(conn: sqlite3.Connection) -> Schema:
    found = conn.execute("SELECT name, type, sql FROM sqlite_schema").fetchall()
    return {str(name): (str(kind), str(text)) for name, kind, text in found}


def _not_ours(file: object, why: str) -> Damaged:
    return Damaged(
        f"{file} is no store as ART writes it, and is not read",
        cause=why,
        hint="look at it with art sql, which has a limit of time; bring back a backup with art restore",
    )
