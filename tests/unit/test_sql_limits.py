"""`art sql` ends, whatever it is asked: its limit holds for what SQLite itself does not end, and for what is written."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from art.cli.main import EXIT_ERROR, run
from art.store.schema import migrate

# One call of a function, in which SQLite looks at no clock: it takes many minutes.
ONE_CALL = "SELECT length(replace(hex(zeroblob(16000000)), hex(zeroblob(300000)) || 'x', ''))"
NEARLY = "0" * 900 + "1"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "server").mkdir()
    with contextlib.closing(sqlite3.connect(folder / "server" / "art.db", isolation_level=None)) as conn:
        migrate(conn)
    return folder


def ended(store: Path, query: str, *words: str) -> Any:
    """What a process of its own says, which must be over long before the query would be."""
    command = [sys.executable, "-m", "art.cli", "sql", query, "--timeout", "1s", "--path", str(store), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "query",
    [
        ONE_CALL,
        f"SELECT hex(zeroblob(30000000)) LIKE '%{NEARLY}'",
        f"SELECT hex(zeroblob(30000000)) GLOB '*{NEARLY}'",
    ],
    ids=["replace", "like", "glob"],
)
def test_one_call_of_a_function_without_an_end(store: Path, query: str) -> None:
    told = ended(store, query)
    assert (told.returncode, told.stdout) == (EXIT_ERROR, "")
    assert told.stderr.splitlines()[0] == "error: the query took longer than 1 s"
    assert "hint: " in told.stderr
    assert "Traceback" not in told.stderr


def test_it_says_so_as_json(store: Path) -> None:
    told = ended(store, ONE_CALL, "--json")
    assert (told.returncode, told.stdout) == (EXIT_ERROR, "")
    assert json.loads(told.stderr)["error"]["code"] == "deadline_exceeded"


def test_a_pattern_has_a_length(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT 'a' LIKE replace(hex(zeroblob(2000)), '00', '%a')"
    assert run(["sql", query, "--path", str(store)]) == EXIT_ERROR
    assert "pattern too complex" in capsys.readouterr().err


NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000) SELECT {} FROM n"


def test_a_result_has_a_size(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = NUMBERS.format("hex(zeroblob(1000000))")
    assert run(["sql", query, "--path", str(store)]) == EXIT_ERROR
    told = capsys.readouterr()
    assert told.out == ""
    assert "the result is larger than 64 MiB" in told.err
    assert "substr" in told.err


def test_one_long_text_makes_no_other_row_long(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = NUMBERS.format("iif(i = 1, hex(zeroblob(1000000)), 'x'), i")
    assert run(["sql", query, "--path", str(store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines[1]) > 2_000_000
    assert max(len(line) for line in lines[2:]) < 2_000
