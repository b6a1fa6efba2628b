"""The table of `make test-clients`, and the file of its results."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from zoo import PROGRAMS

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "test-clients.json"
ROWS = pytest.StashKey[list[dict[str, Any]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config) -> list[dict[str, Any]]:
    """What was found out about each program and way, in the order of the tests."""
    return pytestconfig.stash[ROWS]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash[ROWS]
    if not rows:
        return
    columns = (
        "client",
        "version",
        "dialect",
        "streaming",
        "calls",
        "later_turns",
        "from_memory",
        "branches",
        "ok",
    )
    table = Table(*(name.replace("_", " ") for name in columns), title="test-clients")
    for row in rows:
        table.add_row(
            *(
                "yes" if row[name] is True else "no" if row[name] is False else str(row[name])
                for name in columns
            )
        )
    terminalreporter.write_line("")
    Console(width=150).print(table)
    if len(rows) == 2 * len(PROGRAMS):  # not after `-k`
        RESULTS.write_text(json.dumps(report(rows), indent=1) + "\n")


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    linear = [row for row in rows if not row["rewrites_history"]]
    later, reused = (sum(row[name] for row in linear) for name in ("later_turns", "from_memory"))
    return {
        "machine": {
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": {"clients": rows},
        "bars": [
            bar("clients that end in a trainable trajectory", sum(row["ok"] for row in rows), len(rows)),
            bar("later turns served from memory, of clients that keep their history", reused, later),
        ],
    }


def bar(name: str, value: int, target: int) -> dict[str, Any]:
    return {"name": name, "value": value, "target": target, "ok": value >= target}
