"""A folder's store as a file that is only read, without a server."""

from __future__ import annotations

import sqlite3
from pathlib import Path

BUSY_SECONDS = 2.0
"""A server that writes locks the file for moments."""


def open_store(folder: Path) -> sqlite3.Connection:
    """`server/art.db` of a folder. sqlite3.Error where it cannot be opened; FileNotFoundError where there is none.

    Without a server and without a log beside it the file does not change, and is read even where nothing can be
    written. Else SQLite's own locks keep what is read consistent.
    """
    from art.cli._served import runs_on
    from art.store.distrust import harden

    file = folder / "server" / "art.db"
    if not file.is_file():
        raise FileNotFoundError(str(file))
    log = file.with_name(f"{file.name}-wal")
    still = not runs_on(folder) and (not log.exists() or log.stat().st_size == 0)
    uri = f"{file.absolute().as_uri()}?mode=ro{'&immutable=1' if still else ''}"
    conn = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        harden(conn)
    except BaseException:
        conn.close()
        raise
    return conn
