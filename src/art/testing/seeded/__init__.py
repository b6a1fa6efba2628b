"""A store that looks as if agents had learned in it: for tests, benchmarks and demonstrations of what reads a store.

    python -m art.testing.seeded FOLDER --runs 3 --steps 20

The content goes through the store's own row functions, in few transactions and without a server. The same options give
the same content. `art serve --path FOLDER` and `art ui FOLDER` open it; its base model has no weights, so that only the
scripted engine can sample there.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

from art.errors import Conflict
from art.server.files import write_lines
from art.store import key_rows, model_rows
from art.store.blobs import BlobStore
from art.store.records import AuditRow, KeyRow, Role
from art.store.schema import migrate
from art.store.sql import Conn
from art.store.store import BLOBS, DATABASE
from art.testing.seeded.plan import Plan
from art.testing.seeded.rollouts import Recorder
from art.testing.seeded.run import Run
from art.testing.seeded.task import scenarios
from art.testing.seeded.tokens import CONTEXT, base_model
from art.types.jobs import ResolvedBaseModel

__all__ = ["Plan", "seed"]

KEYS = (
    ("laptop", Role.TRAIN, "the laptop that trains"),
    ("ci", Role.ROLLOUT, "nightly evaluation"),
    ("site", Role.INFER, "the web site"),
)


def seed(folder: Path, plan: Plan | None = None) -> Path:
    """Fill the server's folder `folder`, which must hold no store yet (Conflict), and return it."""
    plan = plan or Plan()
    root = folder.absolute()
    server = root / "server"
    database = server / DATABASE
    if database.exists():
        raise Conflict(f"{root} holds a store already", hint="name a folder that does not exist yet")
    server.mkdir(parents=True, exist_ok=True)
    server.chmod(0o700)
    path = server / "base_models" / "seeded"
    tokens = base_model(path)
    base = ResolvedBaseModel(
        name="seeded/order-desk",
        path=str(path),
        sha256=hashlib.sha256((path / "tokenizer.json").read_bytes()).hexdigest(),
        parameters=135_000_000,
        context_length=CONTEXT,
        source="folder",
    )
    with closing(sqlite3.connect(database, isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = OFF")  # what a crash leaves is seeded anew
        conn.execute("PRAGMA foreign_keys = ON")
        migrate(conn)
        recorder = Recorder(conn, BlobStore(server / BLOBS), tokens, seed=plan.seed)
        asked = scenarios(plan.scenarios, Random(plan.seed))
        runs = [Run(conn, recorder, plan, number, root=root, base=base) for number in range(plan.runs)]
        for run in runs:
            run.write(asked)
            rows = model_rows.list_history(conn, run.project, run.name)
            write_lines(Path(run.model.model_dir) / "history.jsonl", rows)
        _lineage(conn, runs)
        _administer(conn, plan, runs)
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return root


def _lineage(conn: Conn, runs: list[Run]) -> None:
    """The second run was rolled back by two steps; the third began as a copy of the first."""
    if len(runs) > 1:
        second = runs[1]
        steps = [row.info.step for row in model_rows.list_checkpoints(conn, second.project, second.name)]
        if len(steps) > 3:
            model_rows.set_latest(conn, second.project, second.name, steps[-3])
    if len(runs) > 2:
        source = runs[0]
        conn.execute(
            "UPDATE models SET notes = json_array(?) WHERE project = ? AND name = ?",
            (f"forked from {source.project}/{source.name}@2", source.project, runs[2].name),
        )


def _administer(conn: Conn, plan: Plan, runs: list[Run]) -> None:
    """Keys that nobody knows the secret of, and the audit log."""
    for number, (key_id, role, label) in enumerate(KEYS):
        row = KeyRow(
            key_id=key_id,
            sha256=hashlib.sha256(f"{plan.seed}/{key_id}".encode()).hexdigest(),
            role=role,
            project=plan.project,
            label=label,
            created_at=plan.began + number,
            account=key_id,
        )
        key_rows.put_key(conn, row)
        made = AuditRow(time=row.created_at, key_id="admin", action="POST /api/v1/keys", target=plan.project)
        key_rows.add_audit(conn, made)
    for run in runs:
        target = f"{run.project}/{run.name}"
        for at, action in ((run.model.created_at, "POST /api/v1/models"), (run.clock, "POST /api/v1/jobs")):
            entry = AuditRow(
                time=at, key_id="laptop", action=action, target=target, detail={"from": "127.0.0.1"}
            )
            key_rows.add_audit(conn, entry)
