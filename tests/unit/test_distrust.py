"""A store that somebody handed over: whatever its schema holds, a command that looks into it says so and ends."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from art.cli._complete import _of_folder
from art.cli.main import EXIT_ERROR, run
from art.errors import Damaged
from art.store.database import Database
from art.store.distrust import LARGEST_BYTES, require_ours
from art.store.schema import MIGRATIONS, migrate

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


def changed(folder: Path, *statements: str, version: int = len(MIGRATIONS)) -> Path:
    """A server's folder whose store was changed so."""
    (folder / "server").mkdir()
    with contextlib.closing(sqlite3.connect(folder / "server" / "art.db", isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        migrate(conn, MIGRATIONS[:version])
        for statement in statements:
            conn.execute(statement)
    return folder


def in_place_of(table: str, made: str) -> tuple[str, ...]:
    return (f"ALTER TABLE {table} RENAME TO was", made)


VIEW = in_place_of("models", f"CREATE VIEW models AS {ENDLESS}")
HOSTILE = {
    "view": VIEW,
    "version": in_place_of("schema_version", f"CREATE VIEW schema_version AS SELECT i AS version FROM ({ENDLESS})"),
    "generated column": ("ALTER TABLE models ADD COLUMN more TEXT AS (hex(zeroblob(100000000)))",),
    "trigger": ("CREATE TRIGGER more AFTER INSERT ON models BEGIN DELETE FROM rollouts; END",),
    "words": in_place_of("rollout_words_content", f"CREATE VIEW rollout_words_content AS {ENDLESS}"),
    "index": (
        "DROP INDEX rollouts_by_status",
        "CREATE INDEX rollouts_by_status ON rollouts (hex(zeroblob(100000000)))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_schema_of_somebody_else_is_not_served(tmp_path: Path, hostile: tuple[str, ...]) -> None:
    database = Database(changed(tmp_path, *hostile) / "server" / "art.db")
    with pytest.raises(Damaged, match="is no store as ART writes it"):
        database.open()


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "command", [["ls"], ["show", "p/a"], ["ui", "--no-open"]], ids=lambda words: words[0]
)
def test_a_schema_of_somebody_else_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], hostile: tuple[str, ...]
) -> None:
    folder = changed(tmp_path, *hostile)
    where = [str(folder)] if command[0] == "ui" else ["--path", str(folder)]
    assert run([*command, *where]) == EXIT_ERROR
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "is no store as ART writes it" in said
    assert "cause: its " in said or "cause: it has a trigger" in said
    assert "hint: " in said


def test_of_an_older_release_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be brought forward, which writes, and a trigger would see what."""
    folder = changed(tmp_path, *HOSTILE["trigger"], version=3)
    assert run(["ls", "--path", str(folder)]) == EXIT_ERROR
    assert "has a trigger 'more'" in capsys.readouterr().err


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_every_version_of_ours_is_known(tmp_path: Path, version: int) -> None:
    folder = changed(tmp_path, version=version)
    with contextlib.closing(sqlite3.connect(folder / "server" / "art.db")) as conn:
        require_ours(conn, folder)


def test_tables_and_indexes_of_ones_own_are_in_nobodys_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("CREATE TABLE mine (x)", "CREATE INDEX fast ON rollouts (reward)", "ANALYZE")
    assert run(["ls", "--path", str(changed(tmp_path, *own))]) == 0
    assert "nothing yet" in capsys.readouterr().err


def test_sql_looks_at_it_within_its_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, *VIEW)
    query = ["sql", "SELECT count(*) FROM models", "--timeout", "100ms", "--path", str(folder)]
    assert run(query) == EXIT_ERROR
    assert "longer than 0.1 s" in capsys.readouterr().err
    assert run(["sql", "--tables", "--path", str(folder)]) == 0


def test_names_behind_tab_end_too(tmp_path: Path) -> None:
    with pytest.raises(Damaged):
        _of_folder(changed(tmp_path, *VIEW))


def test_a_huge_value_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    huge = f"replace(hex(zeroblob({LARGEST_BYTES // 2 + 1})), '00', 'aa')"
    row = (
        "INSERT INTO models (project, name, config, base, model_dir, step, batch, created_at, notes)"
        f" VALUES ('p', 'a', {huge}, '{{}}', '', 0, 0, 0, '[]')"
    )
    assert run(["ls", "--path", str(changed(tmp_path, row))]) == EXIT_ERROR
    said = capsys.readouterr().err
    assert "too big" in said
    assert "Traceback" not in said
