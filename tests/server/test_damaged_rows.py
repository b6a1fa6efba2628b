"""A row that is not what was written is told by its name: by every view, and by the commands that read them."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import httpx2
import pytest

from art.cli.main import EXIT_ERROR, run
from art.store.damage import JSON_COLUMNS
from art.testing.seeded import Plan, seed

DAMAGE: dict[str, Any] = {"no text at all": b"\xff\xfe\x00", "NULL": None}
DAMAGED_JSON: dict[str, Any] = {
    **DAMAGE,
    "cut short": '{"a": [1, ',
    "another shape": '[["a"]]',
    "deep": "[" * 20_000,
}
JSON = {(table, name) for table, (_, names) in JSON_COLUMNS.items() for name in names}
UNSEEN = {"checkpoints", "history", "upstream_calls"}
"""No view reads them."""
TABLES = (
    *(table for table in JSON_COLUMNS if table not in UNSEEN),
    "rollout_facts",
    "rollout_previews",
    "run_figures",
    "run_fates",
    "notes",
)


class Column(NamedTuple):
    """One value of the store."""

    table: str
    name: str
    place: str
    row: tuple[Any, ...]


class Seeded:
    """A folder, the viewer of it, and rows of one rollout to be damaged."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        where = urlsplit(address)
        token = where.fragment.rpartition("=")[2]
        self.client = httpx2.Client(
            base_url=f"http://{where.netloc}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
            trust_env=False,
        )
        with self.opened() as conn:
            self.project, self.model, self.rollout, self.group, self.scenario = conn.execute(
                "SELECT project, model, rollout_id, group_id, scenario_id FROM rollout_facts"
                " WHERE batch IS NOT NULL AND group_id IS NOT NULL AND status = 'trained' ORDER BY id DESC LIMIT 1"
            ).fetchone()
            (self.call,) = conn.execute(
                "SELECT call_id FROM calls WHERE rollout_id = ? LIMIT 1", (self.rollout,)
            ).fetchone()

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        file = self.folder / "server" / "art.db"
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as conn:
            conn.execute("PRAGMA synchronous = OFF")
            yield conn

    @property
    def routes(self) -> list[str]:
        one = f"/rollouts/{quote(self.rollout)}"
        of_run = f"/runs/{quote(self.project)}/{quote(self.model)}"
        tails = (
            "", "/series?metric=train/reward&metric=train/loss", "/steps", "/groups",
            f"/groups/{quote(self.group)}", "/rollouts?search=order", "/rollouts?filter=reward>0",
            f"/scenarios/{quote(self.scenario)}", "/extremes", "/reward-check",
        )  # fmt: skip
        return ["/runs", *(f"{of_run}{tail}" for tail in tails), one, f"{one}/tokens?call_id={self.call}"]

    def columns(self) -> list[Column]:
        """Texts and numbers of what belongs to the rollout, or to its run."""
        found = []
        with self.opened() as conn:
            for table in TABLES:
                about = conn.execute(f"SELECT name, type, pk FROM pragma_table_info('{table}')").fetchall()
                names, keys = (
                    [name for name, _, _ in about],
                    [name for name, _, pk in about if pk] or ["rowid"],
                )
                by = next((name for name in ("rollout_id", "call_id", "project") if name in names), "")
                value = {"rollout_id": self.rollout, "call_id": self.call, "project": self.project}.get(by)
                where = f"{by} = ?" if by else "? IS NULL"
                row = conn.execute(
                    f"SELECT {', '.join(keys)} FROM {table} WHERE {where} LIMIT 1", (value,)
                ).fetchone()
                if row is not None:
                    place = " AND ".join(f"{key} = ?" for key in keys)
                    texts = [name for name, kind, pk in about if kind in ("TEXT", "REAL") and not pk]
                    found += [Column(table, name, place, row) for name in texts]
        return found

    @contextlib.contextmanager
    def damaged(self, column: Column, value: Any) -> Iterator[bool]:
        """False where the table takes no such value."""
        given = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
        where = f"FROM {column.table} WHERE {column.place}"
        update = f"UPDATE {column.table} SET {column.name} = {{}} WHERE {column.place}"
        with self.opened() as conn:
            (before,) = conn.execute(f"SELECT {column.name} {where}", column.row).fetchone()
            try:
                conn.execute(update.format(given), (value, *column.row))
            except sqlite3.Error:
                yield False
                return
        try:
            yield True
        finally:
            with self.opened() as conn:
                conn.execute(update.format("?"), (before, *column.row))


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeded]:
    folder = seed(tmp_path_factory.mktemp("seeded") / "run", Plan(runs=1, steps=3))
    command = [sys.executable, "-m", "art.cli", "ui", str(folder), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as viewer:
        assert viewer.stdout is not None
        try:
            yield Seeded(folder, json.loads(viewer.stdout.readline())["url"])
        finally:
            viewer.terminate()


def in_turn(number: int, damage: dict[str, Any]) -> list[tuple[str, Any]]:
    """One of the kinds of damage for each column."""
    return [list(damage.items())[number % len(damage)]]


def every(number: int, damage: dict[str, Any]) -> list[tuple[str, Any]]:
    """All of them."""
    return list(damage.items())


@pytest.mark.parametrize("kinds", [in_turn, pytest.param(every, marks=pytest.mark.extended)])
@pytest.mark.parametrize("table", TABLES)
def test_no_view_fails_otherwise_than_by_naming_what_is_damaged(
    seeded: Seeded, table: str, kinds: Callable[[int, dict[str, Any]], list[tuple[str, Any]]]
) -> None:
    wrong = []
    for number, column in enumerate(one for one in seeded.columns() if one.table == table):
        for how, value in kinds(number, DAMAGED_JSON if column[:2] in JSON else DAMAGE):
            with seeded.damaged(column, value) as taken:
                for route in seeded.routes if taken else ():
                    answer = seeded.client.get(f"/api/v1/views{route}")
                    error = answer.json().get("error", {}) if answer.status_code >= 500 else None
                    named = error and error["code"] == "damaged" and error["cause"] and error["hint"]
                    if error is not None and not named:
                        wrong.append((column.table, column.name, how, route, error))
    assert not wrong
    assert all(seeded.client.get(f"/api/v1/views{route}").status_code == 200 for route in seeded.routes)


@pytest.mark.parametrize(
    ("table", "column", "command", "named"),
    [
        ("rollouts", "metrics", ["ls", "rollouts", "{run}"], "the rollout {rollout}"),
        ("rollouts", "limits", ["show", "{rollout}"], "the rollout {rollout}"),
        ("calls", "text", ["show", "{rollout}"], "of the rollout {rollout}"),
        ("choices", "spans", ["show", "{rollout}"], "the choice 0 of the call {call}"),
        ("models", "config", ["show", "{run}"], "the model {run}"),
        ("calls", "sampling_used", ["explain", "{rollout}"], "of the rollout {rollout}"),
    ],
)
def test_commands_name_the_row(
    seeded: Seeded,
    capsys: pytest.CaptureFixture[str],
    table: str,
    column: str,
    command: list[str],
    named: str,
) -> None:
    words = {"rollout": seeded.rollout, "call": seeded.call, "run": f"{seeded.project}/{seeded.model}"}
    place = next(one for one in seeded.columns() if (one.table, one.name) == (table, column))
    with seeded.damaged(place, DAMAGED_JSON["cut short"]):
        said = [word.format(**words) for word in command]
        assert run([*said, "--path", str(seeded.folder)]) == EXIT_ERROR
    told = capsys.readouterr().err
    error, cause, hint = told.splitlines()[-3:]
    assert error.startswith("error: ")
    assert named.format(**words) in error
    assert cause == f"cause: its {column} is no JSON"
    assert "art restore" in hint
    assert "Traceback" not in told


def test_a_file_of_tokens_that_was_cut_short(seeded: Seeded) -> None:
    blobs = seeded.folder / "server" / "blobs" / seeded.project
    file = blobs / f"{seeded.rollout}.blob"
    kept = file.with_suffix(".kept")
    shutil.copyfile(file, kept)
    try:
        file.write_bytes(kept.read_bytes()[:40])
        for route in seeded.routes:
            answer = seeded.client.get(f"/api/v1/views{route}")
            assert answer.status_code == 200 or seeded.rollout in answer.json()["error"]["message"]
            assert answer.status_code < 500
    finally:
        kept.replace(file)
