"""Keys and the audit table in SQL."""

from __future__ import annotations

import time

from art.store.records import AuditRow, KeyRow
from art.store.sql import Conn, dumps, insert, loads, one, rows

NEVER = 2**63 - 1
"""SQLite's largest id, which no row reaches."""


def put_key(conn: Conn, key: KeyRow) -> None:
    """Insert or overwrite a key."""
    insert(conn, "keys", key.model_dump(mode="json"), replace=("key_id",))


def get_key(conn: Conn, key_id: str) -> KeyRow | None:
    row = one(conn, "SELECT * FROM keys WHERE key_id = ?", key_id)
    return None if row is None else KeyRow.model_validate(dict(row))


def list_keys(conn: Conn) -> list[KeyRow]:
    """Oldest first, without the keys of single rollouts."""
    found = rows(conn, "SELECT * FROM keys WHERE rollout_id IS NULL ORDER BY created_at")
    return [KeyRow.model_validate(dict(row)) for row in found]


def drop_expired(conn: Conn) -> int:
    """Delete keys that have expired; the number of them."""
    return conn.execute("DELETE FROM keys WHERE expires_at < ?", (time.time(),)).rowcount


def add_audit(conn: Conn, entry: AuditRow) -> None:
    values = {**entry.model_dump(mode="json", exclude={"id"}), "detail": dumps(entry.detail)}
    insert(conn, "audit", values)


def list_audit(conn: Conn, limit: int, before: int | None) -> list[AuditRow]:
    """Newest first; with `before` those with a smaller id."""
    found = rows(
        conn,
        "SELECT id, time, key_id, action, target, detail FROM audit WHERE id < ? ORDER BY id DESC LIMIT ?",
        NEVER if before is None else before,
        limit,
    )
    return [AuditRow.model_validate({**dict(row), "detail": loads(row["detail"])}) for row in found]
