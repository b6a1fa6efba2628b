"""`make bench-demo`: the demonstration on both tasks and three seeds, each run a process of its own.

Writes benchmarks/results/bench-demo.json (figures, bars) with every run's raw result and training rewards, and
exits with status 1 when a bar is missed. Needs an otherwise idle machine: its bars are times, too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results" / "bench-demo.json"
RUN_SECONDS = 1800
"""A run that takes longer has failed; an undisturbed one takes under ten minutes."""
WEATHER_SECONDS, TICTACTOE_SECONDS = 360.0, 90.0


def main() -> int:
    """Run, print, write; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["weather", "tictactoe"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    console = Console()
    figures = json.loads(RESULTS.read_text())["figures"] if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory(prefix="bench-demo-", ignore_cleanup_errors=True) as folder:
        for task in options.tasks:
            for seed in options.seeds:
                console.print(f"{task}, seed {seed}")
                figures[f"{task} seed {seed}"] = one = run(task, seed, Path(folder))
                console.print(json.dumps(one["result"]))
                # Written after each run: an hour of them is not lost to the last one.
                report = summary(figures)
                RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    table = Table("bar", "value", "target", "", title="bench-demo")
    for line in report["bars"]:
        table.add_row(
            line["name"],
            f"{line['value']:.3f}",
            f"{line['target']:g}",
            "ok" if line["ok"] else "[red]missed[/red]",
        )
    console.print(table)
    console.print(f"written to {RESULTS}")
    return 0 if all(line["ok"] for line in report["bars"]) else 1


def summary(figures: dict[str, Any]) -> dict[str, Any]:
    """The result file. Runs of earlier calls stay, each with its own date and load."""
    return {
        "machine": {"platform": platform.platform(), "cpu": cpu_name(), "cores": os.cpu_count()},
        "date": now(),
        "figures": figures,
        "bars": [line for one in figures.values() for line in bars(one)],
    }


def now() -> str:
    """The time, as the results note it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def run(task: str, seed: int, folder: Path) -> dict[str, Any]:
    """One `art demo --json`: its result, and the lines it printed while it ran."""
    command = [sys.executable, "-m", "art.cli.main", "demo", "--task", task, "--seed", str(seed), "--json"]
    done = subprocess.run(
        [*command, "--path", str(folder)], capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise SystemExit(f"{task}, seed {seed}: no result\n{done.stderr}")
    progress = [line for line in done.stderr.splitlines() if line.startswith(("step ", "held-out "))]
    return {
        "date": now(),
        "load_average": list(os.getloadavg()),
        "seed": seed,
        "result": json.loads(lines[-1]),
        "exit_status": done.returncode,
        "progress": progress,
    }


def bars(one: dict[str, Any]) -> list[dict[str, Any]]:
    """What must hold of one run."""
    result = one["result"]
    name = f"{result['task']} seed {one['seed']}"
    gain = result["eval_after"] - result["eval_before"]
    lines = [bar(f"{name}: gain", gain, 0.5, least=True)]
    if result["task"] == "weather":
        above = result["eval_after"] - result["best_constant"]
        lines += [
            bar(f"{name}: before", result["eval_before"], 0.3, least=False),
            bar(f"{name}: above the best constant", above, 0.3, least=True),
            bar(f"{name}: seconds", result["seconds"], WEATHER_SECONDS, least=False),
        ]
    else:
        lines.append(bar(f"{name}: seconds", result["seconds"], TICTACTOE_SECONDS, least=False))
    return lines


def bar(name: str, value: float, target: float, *, least: bool) -> dict[str, Any]:
    """A bar: `value` must reach `target` (least), or stay within it."""
    return {
        "name": name,
        "value": value,
        "target": target,
        "ok": value >= target if least else value <= target,
    }


def cpu_name() -> str:
    """The processor, as Linux names it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


if __name__ == "__main__":
    sys.exit(main())
