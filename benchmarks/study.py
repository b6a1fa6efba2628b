"""`make study`: what learns with ART, over tasks, losses and seeds.

    make study                               everything that is not there yet (about two hours on two idle cores)
    make study ARGS="--only guess"           the runs of one task, one variant, or one run by name
    make study ARGS="--list"                 which runs there are, and which of them are done

Each run trains a model of its own and writes benchmarks/results/study/<run>.json as soon as it ends: settings, versions,
every step's figures, the evaluations before and after. A study that was stopped or killed goes on with the run that it
was at; a run whose settings have changed since is made again. benchmarks/results/study.json sums up what is there, with
a picture for each task beside the runs. Exits with 1 when a bar is missed or a run is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_demo import cpu_name, now
from rich.console import Console
from rich.table import Table
from study_report import bars, draw, figures
from study_runs import RUNS, Place, Run, finished, make

from art.demo.plot import available
from art.demo.run import BASE_MODEL
from art.errors import ArtError

RESULTS = Path(__file__).parent / "results" / "study"
SCRATCH = Path(__file__).parents[1] / ".art" / "study"


def main() -> int:
    """Make what is missing, sum up, print; 1 when a bar or a run is missed."""
    options = arguments()
    place = Place(options.results, options.scratch, options.base_model, options.steps, options.held_out)
    console = Console(soft_wrap=True, highlight=False)
    chosen = [run for run in RUNS if not options.only or wanted(run, options.only)]
    if not chosen:
        raise SystemExit(f"no run is called {' or '.join(options.only)}; --list shows all")
    if options.list:
        for run in chosen:
            console.print(f"{run.name}  {'done' if finished(run, place) else '-'}")
        return 0
    available()
    failed = False
    for number, run in enumerate(chosen, 1):
        if finished(run, place) and not options.again:
            continue
        console.print(f"{run.name}: {number} of {len(chosen)}")
        try:
            make(run, place)
        except ArtError as error:
            # The next run has a server of its own; this one is made when the study is started again.
            console.print(f"{run.name} failed: {error}")
            failed = True
        sum_up(place)
    report = sum_up(place)
    show(report, console)
    return 0 if not failed and all(line["ok"] for line in report["bars"]) else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="WHAT", help="a task, a variant or a run")
    parser.add_argument("--list", action="store_true", help="show the runs and make none")
    parser.add_argument("--again", action="store_true", help="make runs that are done once more")
    parser.add_argument("--base-model", default=BASE_MODEL, help="another model, for a trial")
    parser.add_argument("--steps", type=int, help="train calls of each run, for a trial")
    parser.add_argument("--held-out", type=int, help="evaluation runs of each run, for a trial")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder for the run in progress")
    return parser.parse_args()


def wanted(run: Run, only: Sequence[str]) -> bool:
    """Whether one of the words names the run, its task or its variant."""
    return not {run.name, run.task, run.variant}.isdisjoint(only)


def sum_up(place: Place) -> dict[str, Any]:
    """Write the summary and the pictures of all runs that are done."""
    results = {run.name: result for run in RUNS if (result := finished(run, place)) is not None}
    report = {
        "machine": {"platform": platform.platform(), "cpu": cpu_name(), "cores": os.cpu_count()},
        "date": now(),
        "figures": figures(results),
        "bars": bars(results),
    }
    place.results.mkdir(parents=True, exist_ok=True)
    place.results.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
    draw(results, place.results)
    return report


def show(report: dict[str, Any], console: Console) -> None:
    """The figures and bars as tables."""
    table = Table("what", "seeds", "before", "after", "steps", "seconds", title="study: held-out reward")
    for name, one in report["figures"].items():
        table.add_row(
            name,
            str(len(one["seeds"])),
            spread(one["before"]),
            spread(one["after"]),
            f"{min(one['steps'])} to {max(one['steps'])}",
            f"{one['seconds']['mean']:.0f}",
        )
    console.print(table)
    table = Table("bar", "value", "target", "", title="study")
    for line in report["bars"]:
        table.add_row(
            line["name"],
            f"{line['value']:.3f}",
            f"{line['target']:g}",
            "ok" if line["ok"] else "[red]missed[/red]",
        )
    console.print(table)


def spread(values: dict[str, Any]) -> str:
    """A mean and its standard deviation over seeds."""
    deviation = values["standard_deviation"]
    return f"{values['mean']:.3f}" + ("" if deviation is None else f" ± {deviation:.3f}")


if __name__ == "__main__":
    sys.exit(main())
