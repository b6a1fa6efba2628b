"""Small helpers between typed records and rows."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Mapping
from typing import Any

Conn = sqlite3.Connection
Row = sqlite3.Row


def dumps(value: Any) -> str:
    """JSON text. NaN and infinity are refused (ValueError): a column holds JSON, whoever reads it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def loads(text: str) -> Any:
    return json.loads(text)


def insert(conn: Conn, table: str, values: Mapping[str, Any], *, replace: tuple[str, ...] = ()) -> None:
    """Insert one row; with `replace` (the key columns) an existing row is overwritten."""
    columns = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    text = f"INSERT INTO {table} ({columns}) VALUES ({marks})"
    if replace:
        updates = ", ".join(f"{name} = excluded.{name}" for name in values if name not in replace)
        text += f" ON CONFLICT ({', '.join(replace)}) DO UPDATE SET {updates}"
    conn.execute(text, values)


def one(conn: Conn, query: str, *args: Any) -> Row | None:
    """The first row, or None."""
    row: Row | None = conn.execute(query, args).fetchone()
    return row


def rows(conn: Conn, query: str, *args: Any) -> list[Row]:
    return conn.execute(query, args).fetchall()


def finite(value: float | None) -> float | None:
    """As JSON takes it: a mean that SQLite added up past the largest number is that number."""
    return None if value is None else max(-sys.float_info.max, min(sys.float_info.max, value))
