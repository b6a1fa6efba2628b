"""Keys, what they used, and the audit table in SQL."""

from __future__ import annotations

import time

from art.store.records import AuditRow, KeyRow
from art.store.sql import Conn, Row, dumps, insert, loads, one, rows

NEVER = 2**63 - 1
"""SQLite's largest id, which no row reaches."""
DAY_SECONDS = 24 * 3600
KEPT_DAYS = 31
"""Of what keys used; older days decide nothing any more."""


def day_of(moment: float) -> int:
    """Number of the day in UTC, counted from 1970; `moment` is Unix time."""
    return int(moment // DAY_SECONDS)


def put_key(conn: Conn, key: KeyRow) -> None:
    """Insert or overwrite a key."""
    values = key.model_dump(mode="json", exclude={"quotas"})
    quotas = dumps(key.quotas.model_dump(exclude_none=True))
    insert(conn, "keys", {**values, "quotas": quotas}, replace=("key_id",))


def get_key(conn: Conn, key_id: str) -> KeyRow | None:
    row = one(conn, "SELECT * FROM keys WHERE key_id = ?", key_id)
    return None if row is None else _key(row)


def list_keys(conn: Conn) -> list[KeyRow]:
    """Oldest first, without the keys of single rollouts."""
    found = rows(conn, "SELECT * FROM keys WHERE rollout_id IS NULL ORDER BY created_at")
    return [_key(row) for row in found]


def _key(row: Row) -> KeyRow:
    return KeyRow.model_validate({**dict(row), "quotas": loads(row["quotas"])})


def replace_key(conn: Conn, old: KeyRow, new: KeyRow) -> None:
    """Both keys as they are now; the rollouts that the old one opened are the new one's."""
    put_key(conn, new)
    put_key(conn, old)
    conn.execute("UPDATE keys SET opened_by = ? WHERE opened_by = ?", (new.key_id, old.key_id))


def drop_expired(conn: Conn) -> int:
    """Delete keys that have expired, and what was used long ago; the number of keys."""
    now = time.time()
    conn.execute("DELETE FROM key_usage WHERE day < ?", (day_of(now) - KEPT_DAYS,))
    return conn.execute("DELETE FROM keys WHERE expires_at < ?", (now,)).rowcount


def tokens_of_all(conn: Conn, day: int) -> dict[str, int]:
    """Tokens used on a day, by account."""
    found = rows(conn, "SELECT account, tokens FROM key_usage WHERE day = ?", day)
    return {row["account"]: row["tokens"] for row in found}


def add_tokens(conn: Conn, account: str, day: int, tokens: int) -> None:
    conn.execute(
        "INSERT INTO key_usage (account, day, tokens) VALUES (?, ?, ?)"
        " ON CONFLICT (account, day) DO UPDATE SET tokens = tokens + excluded.tokens",
        (account, day, tokens),
    )


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
