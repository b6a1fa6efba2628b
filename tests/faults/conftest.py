"""One server for all faults, on a small disk of its own and with a clock that jumps; and the table at the end of a run.

Every case says how long it took until the fault showed, what the user sees and what was lost (`case`). The bounds are
those that the project promises: 2 s for a killed worker, 15 s for a frozen one, 5 s for the others.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "server"))

from fault_kit import OTHER, Clock, Disk, SilentJudge  # noqa: E402  the path is set above
from train_kit import ENVIRONMENT, Trained  # noqa: E402

from art.testing.server import ArtServer  # noqa: E402

STALL_SECONDS = 3
"""Short, so that the watchdog of the server has something to say while a worker is frozen."""
PROPERTY = "fault"

Case = Callable[..., None]


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Note what a fault did: `case(name, detected, seen=..., lost=..., bound=...)`; `detected` is in seconds, None where
    there is nothing to be noticed."""

    def note(
        name: str,
        detected: float | None,
        *,
        seen: str,
        lost: str = "nothing",
        bound: float = OTHER,
        how: str = "real",
    ) -> None:
        words = " ".join(seen.split()).replace(f"{tmp_path_factory.getbasetemp()}/", "")
        line = {
            "case": name,
            "seconds": None if detected is None else round(detected, 2),
            "bound": bound,
            "seen": words,
            "lost": lost,
            "how": how,
        }
        request.node.user_properties.append((PROPERTY, line))
        assert detected is None or detected < bound, f"{name}: it took {detected:.1f} s to show"

    return note


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """A small file system, where this process may mount one."""
    disk = Disk(tmp_path_factory.mktemp("disk"))
    yield disk
    disk.release()


@pytest.fixture(scope="session")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    """The wall clock of the server's processes."""
    return Clock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="session")
def judge() -> Iterator[SilentJudge]:
    """An upstream that takes connections and never answers."""
    judge = SilentJudge()
    yield judge
    judge.close()


@pytest.fixture(scope="session")
def trained(disk: Disk, clock: Clock, judge: SilentJudge, tiny_model_dir: Path) -> Iterator[Trained]:
    """The server of all faults, with the model `p/m`: it survives one after another."""
    environment = {**ENVIRONMENT, **clock.environment, "ART_SERVER__STALL_SECONDS": str(STALL_SECONDS)}
    server = ArtServer(
        disk.folder / "server",
        engine="torch",
        arguments=["--set", f"server.upstreams.judge={judge.url},timeout=2"],
        environment=environment,
    ).start()
    trained = Trained(server, tiny_model_dir)
    trained.register()
    yield trained
    server.stop()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table of all cases, and the file `ART_FAULTS_JSON` where that is set."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    lines = [
        value
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if not lines:
        return
    terminalreporter.section("faults: seconds until they show, what the user sees, what is lost")
    for line in lines:
        mark = "" if line["how"] == "real" else f" [{line['how']}]"
        shown = "" if line["seconds"] is None else f"{line['seconds']:6.2f} < {line['bound']:2.0f} s"
        terminalreporter.write_line(f"{line['case'] + mark:44} {shown:13}  lost: {line['lost']}")
        terminalreporter.write_line(f"    {line['seen'][:180]}")
    if out := os.environ.get("ART_FAULTS_JSON"):
        Path(out).write_text(json.dumps(result(lines), indent=2) + "\n")


def result(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The result file."""
    return {
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": {line["case"]: line for line in lines},
        "bars": [
            {
                "name": line["case"],
                "value": line["seconds"],
                "target": line["bound"],
                "ok": line["seconds"] < line["bound"],
            }
            for line in lines
            if line["seconds"] is not None
        ],
    }
