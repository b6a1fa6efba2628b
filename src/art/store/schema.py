"""The database's tables, as numbered migrations.

A migration runs once, in its own transaction, and records its number in `schema_version`. Migrations are
appended, never edited: a folder written by an older release is brought forward at the next start, and one
written by a newer release is refused.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

from art.errors import ConfigError
from art.store import fate_rows, figure_rows, rollout_facts

Step = str | Callable[[sqlite3.Connection], None]
"""A statement, or what takes more than one can say."""

MIGRATIONS: tuple[tuple[Step, ...], ...] = (
    (
        """CREATE TABLE models (
            project TEXT NOT NULL, name TEXT NOT NULL,
            config TEXT NOT NULL, base TEXT NOT NULL, model_dir TEXT NOT NULL,
            step INTEGER NOT NULL, batch INTEGER NOT NULL, created_at REAL NOT NULL, notes TEXT NOT NULL,
            PRIMARY KEY (project, name)
        ) STRICT""",
        """CREATE TABLE checkpoints (
            project TEXT NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL,
            info TEXT NOT NULL, metrics TEXT NOT NULL, job_id TEXT, created_at REAL NOT NULL,
            deleted_at REAL,
            PRIMARY KEY (project, name, step)
        ) STRICT""",
        """CREATE TABLE rollouts (
            rollout_id TEXT PRIMARY KEY, project TEXT NOT NULL, model TEXT NOT NULL, step INTEGER NOT NULL,
            purpose TEXT NOT NULL, sampling TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL,
            implicit INTEGER NOT NULL, reward REAL, scenario_id TEXT, group_id TEXT,
            member INTEGER NOT NULL, run_seed INTEGER NOT NULL, limits TEXT NOT NULL,
            metrics TEXT NOT NULL, metadata TEXT NOT NULL, key_id TEXT,
            created_at REAL NOT NULL, ended_at REAL
        ) STRICT""",
        "CREATE INDEX rollouts_by_model ON rollouts (project, model, created_at)",
        "CREATE INDEX rollouts_by_status ON rollouts (status)",
        "CREATE INDEX rollouts_by_group ON rollouts (group_id)",
        """CREATE TABLE calls (
            call_id TEXT PRIMARY KEY, rollout_id TEXT NOT NULL REFERENCES rollouts (rollout_id),
            parent_call_id TEXT, branch INTEGER NOT NULL, number INTEGER NOT NULL, agent TEXT,
            dialect TEXT NOT NULL, version TEXT NOT NULL, purpose TEXT NOT NULL, auxiliary INTEGER NOT NULL,
            sampling_asked TEXT NOT NULL, sampling_used TEXT NOT NULL,
            prompt_token_count INTEGER NOT NULL, reused_token_count INTEGER NOT NULL,
            started_at REAL NOT NULL, first_token_at REAL, finished_at REAL,
            blob TEXT, text TEXT NOT NULL
        ) STRICT""",
        "CREATE INDEX calls_by_rollout ON calls (rollout_id, number)",
        """CREATE TABLE choices (
            call_id TEXT NOT NULL REFERENCES calls (call_id), choice INTEGER NOT NULL,
            finish_reason TEXT NOT NULL, token_count INTEGER NOT NULL, spans TEXT NOT NULL,
            fate TEXT NOT NULL, reason TEXT NOT NULL, trained_tokens INTEGER NOT NULL DEFAULT 0,
            reward REAL, weight REAL NOT NULL,
            PRIMARY KEY (call_id, choice)
        ) STRICT""",
        "CREATE INDEX choices_by_fate ON choices (fate)",
        """CREATE TABLE jobs (
            job_id TEXT PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,
            status TEXT NOT NULL, spec TEXT NOT NULL, batch INTEGER, parent_step INTEGER,
            attempts INTEGER NOT NULL, cancel_requested INTEGER NOT NULL,
            created_at REAL NOT NULL, started_at REAL, ended_at REAL, result TEXT, error TEXT
        ) STRICT""",
        "CREATE INDEX jobs_by_status ON jobs (status, created_at)",
        """CREATE TABLE job_events (
            job_id TEXT NOT NULL REFERENCES jobs (job_id), id INTEGER NOT NULL,
            type TEXT NOT NULL, time REAL NOT NULL, data TEXT NOT NULL,
            PRIMARY KEY (job_id, id)
        ) STRICT""",
        """CREATE TABLE batches (
            project TEXT NOT NULL, name TEXT NOT NULL, batch INTEGER NOT NULL, job_id TEXT NOT NULL,
            parent_step INTEGER NOT NULL, step INTEGER NOT NULL, published INTEGER NOT NULL,
            reason TEXT NOT NULL, metrics TEXT NOT NULL, time REAL NOT NULL,
            PRIMARY KEY (project, name, batch)
        ) STRICT""",
        """CREATE TABLE history (
            id INTEGER PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL,
            step INTEGER NOT NULL, recorded_at TEXT NOT NULL, digest TEXT NOT NULL, data TEXT NOT NULL,
            UNIQUE (project, name, digest)
        ) STRICT""",
        """CREATE TABLE logged_trajectories (
            id INTEGER PRIMARY KEY, history_id INTEGER NOT NULL REFERENCES history (id),
            project TEXT NOT NULL, name TEXT NOT NULL, split TEXT NOT NULL, step INTEGER NOT NULL,
            group_index INTEGER NOT NULL, trajectory_index INTEGER NOT NULL, rollout_id TEXT,
            reward REAL NOT NULL, body TEXT NOT NULL, created_at REAL NOT NULL
        ) STRICT""",
        "CREATE INDEX logged_by_model ON logged_trajectories (project, name, step)",
        """CREATE TABLE keys (
            key_id TEXT PRIMARY KEY, sha256 TEXT NOT NULL, role TEXT NOT NULL, project TEXT, rollout_id TEXT,
            label TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL, revoked_at REAL
        ) STRICT""",
        """CREATE TABLE audit (
            id INTEGER PRIMARY KEY, time REAL NOT NULL, key_id TEXT, action TEXT NOT NULL,
            target TEXT NOT NULL, detail TEXT NOT NULL
        ) STRICT""",
        """CREATE TABLE idempotency (
            scope TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, ref TEXT NOT NULL,
            created_at REAL NOT NULL,
            PRIMARY KEY (scope, key)
        ) STRICT""",
    ),
    (
        """CREATE TABLE upstream_calls (
            call_id TEXT PRIMARY KEY, rollout_id TEXT, project TEXT, key_id TEXT, agent TEXT,
            upstream TEXT NOT NULL, model TEXT NOT NULL, route TEXT NOT NULL,
            outcome TEXT NOT NULL, status INTEGER, error TEXT NOT NULL, usage TEXT NOT NULL,
            started_at REAL NOT NULL, first_byte_at REAL, finished_at REAL,
            request TEXT NOT NULL, answer TEXT NOT NULL
        ) STRICT""",
        "CREATE INDEX upstream_calls_by_rollout ON upstream_calls (rollout_id)",
    ),
    (
        "ALTER TABLE calls ADD COLUMN auxiliary_reason TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE calls ADD COLUMN auxiliary_asked INTEGER",
        "ALTER TABLE calls ADD COLUMN tool_count INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE calls ADD COLUMN system_number INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE calls ADD COLUMN opening_number INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE choices ADD COLUMN trained_step INTEGER",
        "ALTER TABLE rollouts ADD COLUMN auxiliary TEXT NOT NULL DEFAULT 'detect'",
        "ALTER TABLE rollouts ADD COLUMN agent_rewards TEXT NOT NULL DEFAULT '{}'",
    ),
    (
        "CREATE INDEX logged_by_rollout ON logged_trajectories (rollout_id)",
        "CREATE INDEX keys_by_rollout ON keys (rollout_id)",
    ),
    (
        "ALTER TABLE rollouts ADD COLUMN seed_key TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE rollouts ADD COLUMN seed_identity TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE rollouts ADD COLUMN repeat INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX rollouts_by_seed ON rollouts (project, model, seed_identity)",
    ),
    (
        "ALTER TABLE keys ADD COLUMN quotas TEXT NOT NULL DEFAULT '{}'",
        # Keys that replaced one another are one account; a rollout's key belongs to the key that opened the rollout.
        "ALTER TABLE keys ADD COLUMN account TEXT NOT NULL DEFAULT ''",
        "UPDATE keys SET account = key_id",
        "ALTER TABLE keys ADD COLUMN opened_by TEXT",
        "UPDATE keys SET opened_by = (SELECT key_id FROM rollouts WHERE rollouts.rollout_id = keys.rollout_id)",
        "CREATE INDEX keys_by_opener ON keys (opened_by)",
        """CREATE TABLE key_usage (
            account TEXT NOT NULL, day INTEGER NOT NULL, tokens INTEGER NOT NULL,
            PRIMARY KEY (account, day)
        ) STRICT""",
    ),
    (
        "CREATE INDEX calls_sealed ON calls (rollout_id) WHERE json_extract(blob, '$.sealed')",
        "CREATE TABLE retentions (project TEXT PRIMARY KEY, keep_seconds REAL NOT NULL, changed_at REAL NOT NULL) STRICT",
    ),
    (
        *rollout_facts.TABLES,
        rollout_facts.fill,
        *rollout_facts.INDEXES,
        *figure_rows.TABLES,
        figure_rows.fill,
    ),
    (
        # What the figures of a run come to (types/cumulative), and the scenarios it has met, as digests.
        """CREATE TABLE run_totals (
            project TEXT NOT NULL, name TEXT NOT NULL, totals TEXT NOT NULL, PRIMARY KEY (project, name)
        ) STRICT""",
        """CREATE TABLE run_scenarios (
            project TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (project, name, digest)
        ) STRICT, WITHOUT ROWID""",
    ),
    (
        """CREATE TABLE trained_choices (
            call_id TEXT NOT NULL, choice INTEGER NOT NULL, step INTEGER NOT NULL,
            advantage REAL, blob TEXT,
            PRIMARY KEY (call_id, choice)
        ) STRICT""",
        """CREATE TABLE notes (
            rollout_id TEXT PRIMARY KEY, flag TEXT, note TEXT NOT NULL, key_id TEXT, time REAL NOT NULL
        ) STRICT""",
        """CREATE TABLE saved_views (
            project TEXT NOT NULL, name TEXT NOT NULL, location TEXT NOT NULL, key_id TEXT, time REAL NOT NULL,
            PRIMARY KEY (project, name)
        ) STRICT""",
        """CREATE TABLE run_configs (
            project TEXT NOT NULL, name TEXT NOT NULL, config TEXT NOT NULL, origin TEXT NOT NULL, time REAL NOT NULL,
            PRIMARY KEY (project, name)
        ) STRICT""",
    ),
    fate_rows.TABLES,
)


def schema_version(conn: sqlite3.Connection) -> int:
    """Of the database as it is; 0 for one without tables."""
    if not conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone():
        return 0
    return int(conn.execute("SELECT COALESCE(MAX(version), 0) FROM schema_version").fetchone()[0])


def migrate(conn: sqlite3.Connection, migrations: tuple[tuple[Step, ...], ...] = MIGRATIONS) -> int:
    """Bring the database to the newest schema; returns its version. ConfigError when it is newer than we are."""
    conn.execute(
        "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, applied_at REAL NOT NULL) STRICT"
    )
    current = schema_version(conn)
    if current > len(migrations):
        raise ConfigError(
            f"the store has schema version {current}, this release knows {len(migrations)}",
            cause="a newer release wrote it",
            hint="use that release, or another folder (--path)",
        )
    for number, statements in enumerate(migrations[current:], start=current + 1):
        conn.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                if callable(statement):
                    statement(conn)
                else:
                    conn.execute(statement)
            conn.execute("INSERT INTO schema_version VALUES (?, ?)", (number, time.time()))
        except BaseException:
            conn.execute("ROLLBACK")
            raise
        conn.execute("COMMIT")
    return len(migrations)
