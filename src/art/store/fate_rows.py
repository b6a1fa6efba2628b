"""How many choices of a run met which fate, counted as they meet it: a run's page must not read all its choices."""

from __future__ import annotations

from art.store.sql import Conn

_WHOSE = "FROM calls JOIN rollout_facts USING (rollout_id) WHERE call_id = {row}.call_id"
_MORE = (
    "INSERT INTO run_fates SELECT project, model, NEW.fate, 1 "
    + _WHOSE.format(row="NEW")
    + " ON CONFLICT DO UPDATE SET count = count + 1"
)
_FEWER = (
    "UPDATE run_fates SET count = count - 1 WHERE fate = OLD.fate AND (project, name) = (SELECT project, model "
    + _WHOSE.format(row="OLD")
    + ")"
)

TABLES = (
    """CREATE TABLE run_fates (
        project TEXT NOT NULL, name TEXT NOT NULL, fate TEXT NOT NULL, count INTEGER NOT NULL,
        PRIMARY KEY (project, name, fate)
    ) STRICT, WITHOUT ROWID""",
    "INSERT INTO run_fates SELECT project, model, fate, COUNT(*) FROM choices JOIN calls USING (call_id)"
    " JOIN rollout_facts USING (rollout_id) GROUP BY project, model, fate",
    f"CREATE TRIGGER run_fates_met AFTER INSERT ON choices BEGIN {_MORE}; END",
    f"CREATE TRIGGER run_fates_changed AFTER UPDATE OF fate ON choices WHEN NEW.fate != OLD.fate"
    f" BEGIN {_FEWER}; {_MORE}; END",
    f"CREATE TRIGGER run_fates_deleted AFTER DELETE ON choices BEGIN {_FEWER}; END",
)
"""Of a migration. Choices are deleted before their calls, by which the trigger knows whose they were."""


def fates(conn: Conn, project: str, name: str) -> dict[str, int]:
    """Choices by fate."""
    found = conn.execute(
        "SELECT fate, count FROM run_fates WHERE project = ? AND name = ? AND count > 0", (project, name)
    )
    return dict(iter(found))
