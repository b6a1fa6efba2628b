"""How fast the dashboard is over a large store: 100 runs, 1,000 steps, 100,000 trajectories, 10 million tokens.

    make bench-dashboard                                seeds the store once (some minutes), then about three minutes
    make bench-dashboard ARGS="--no-browser"            the server's lists alone

Every list, filter and search is asked of a real `art serve` over HTTP, seven times on one connection, in a store of which half is one
run: what is slow is slow there. A real Chromium then opens the first view and a trajectory of 30,000 tokens, with nothing in its cache,
and scrolls through the tokens; times are the page's own.

Writes benchmarks/results/bench-dashboard.json; exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import sqlite3
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlencode

import httpx2
from dashboard_pages import Pages
from dashboard_store import LARGE, LONG, PLAN, SEEDED, make
from rich.console import Console
from rich.table import Table

from art.dashboard import STATIC
from art.testing.server import ArtServer

RESULTS = Path(__file__).parent / "results" / "bench-dashboard.json"
TIMES = 7
LIST_MS, VIEW_MS, FREEZE_MS = 300.0, 1000.0, 200.0
ASSET_BYTES = 150_000
CALM_SECONDS = 20.0
"""After the start: the trainer's process loads torch meanwhile."""
RUN = f"views/runs/{PLAN.project}/{LARGE}"


def queries() -> dict[str, str]:
    """Everything that the dashboard and the command line ask of lists, by name."""
    found = {
        "runs": "views/runs",
        "one run": RUN,
        "series": f"{RUN}/series?metric=train/reward&metric=val/reward&metric=loss/entropy&metric=parity/mean",
        "steps": f"{RUN}/steps",
        "groups": f"{RUN}/groups",
        "groups of a batch": f"{RUN}/groups?batch=250",
        "groups of a scenario": f"{RUN}/groups?scenario=order-010",
        "scenarios by change": f"{RUN}/scenarios",
        "scenarios, worst first": f"{RUN}/scenarios?sort=reward_last",
        "one scenario": f"{RUN}/scenarios/order-010",
        "extremes": f"{RUN}/extremes",
    }
    rollouts: dict[str, dict[str, Any]] = {
        "rollouts": {},
        "by reward": {"sort": "reward", "order": "asc"},
        "by tokens": {"sort": "sampled_tokens"},
        "by tool errors": {"sort": "tool_errors"},
        "by seconds": {"sort": "seconds"},
        "reward < 0 and tool_errors > 0": {"filter": "reward < 0 and tool_errors > 0"},
        "status = trained": {"filter": "status = trained"},
        "sampled_tokens > 10 and step > 100": {
            "filter": "sampled_tokens > 10 and step > 100",
            "sort": "reward",
        },
        "metrics.right = 0": {"filter": "metrics.right = 0"},
        'metadata.city = "Paris"': {"filter": 'metadata.city = "Paris"'},
        "reason ~ timeout": {"filter": "reason ~ timeout"},
        "a word in every rollout": {"search": "order"},
        "a word in half of them": {"search": "refund"},
        "a word in none": {"search": "xylophone"},
        "two words": {"search": "order kettle"},
        "a phrase": {"search": '"depot near Paris"'},
        "a beginning": {"search": "tele*"},
        "search and filter, by reward": {"search": "order", "filter": "reward < 0", "sort": "reward"},
        "text in a filter": {"filter": 'text ~ "refund" and not text ~ "carrier"'},
    }
    return found | {name: f"{RUN}/rollouts?{urlencode(query)}" for name, query in rollouts.items()}


def main() -> int:
    options = parse_arguments()
    console = Console()
    console.print(f"the store in {options.folder} (seeded where there is none)")
    make(options.folder)
    with ArtServer(options.folder, script={"default": "On its way."}) as server:
        time.sleep(CALM_SECONDS)
        load = os.getloadavg()[0]
        lists = measure_lists(server)
        pages = Pages(server.url, server.admin_key).measure(PLAN.project, LONG) if options.browser else {}
    report = summary(options.folder, lists, pages, load)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    show(console, report)
    return 0 if all(bar["ok"] for bar in report["bars"]) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/dashboard-store"))
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="the server's lists alone")
    return parser.parse_args()


def measure_lists(server: ArtServer) -> dict[str, dict[str, Any]]:
    """By query: milliseconds until the whole answer is there, and its size; a second page is a query of its own."""
    found: dict[str, dict[str, Any]] = {}
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    with httpx2.Client(base_url=f"{server.url}/api/v1/", headers=headers, timeout=60) as client:
        for name, path in queries().items():
            found[name], answer = timed(client, path)
            if following := answer.get("next"):
                sign = "&" if "?" in path else "?"
                found[f"{name}, page 2"], _ = timed(client, f"{path}{sign}{urlencode({'cursor': following})}")
    return found


def timed(client: httpx2.Client, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    took: list[float] = []
    for _ in range(TIMES):
        began = time.perf_counter()
        answer = client.get(path)
        took.append(1000 * (time.perf_counter() - began))
        answer.raise_for_status()
    rows = next((len(value) for value in answer.json().values() if isinstance(value, list)), 1)
    figures = {"median_ms": median(took), "worst_ms": max(took), "bytes": len(answer.content), "rows": rows}
    return {name: round(value, 1) for name, value in figures.items()}, answer.json()


def summary(folder: Path, lists: dict[str, Any], pages: dict[str, Any], load: float) -> dict[str, Any]:
    """The report in the house's form."""
    assets = asset_bytes()
    slowest = max(lists.items(), key=lambda item: item[1]["worst_ms"])
    bars = [
        bar(f"slowest list ({slowest[0]}), ms", slowest[1]["worst_ms"], LIST_MS),
        bar("assets compressed, bytes", assets, ASSET_BYTES),
    ]
    if pages:
        bars += [
            bar("first view, ms", pages["first_view_ms"], VIEW_MS),
            bar("30,000 tokens drawn, ms", pages["tokens_drawn_ms"], VIEW_MS),
            bar("longest freeze in scrolling, ms", pages["longest_task_ms"], FREEZE_MS),
        ]
    return {
        "machine": {
            "platform": platform.platform(),
            "cores": len(os.sched_getaffinity(0)),
            "load_average": round(load, 2),
            "sqlite": sqlite3.sqlite_version,
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": {"store": contents(folder), "lists": lists, "pages": pages, "asset_bytes": assets},
        "bars": bars,
    }


def bar(name: str, value: float, target: float) -> dict[str, Any]:
    return {"name": name, "value": value, "target": f"< {target:g}", "ok": value < target}


def contents(folder: Path) -> dict[str, Any]:
    """What was looked at."""
    file = folder / "server" / "art.db"
    conn = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    try:
        (trajectories, tokens, calls) = conn.execute(
            "SELECT COUNT(*), SUM(sampled_tokens), SUM(calls) FROM rollout_facts"
        ).fetchone()
        (runs,) = conn.execute("SELECT COUNT(*) FROM models").fetchone()
        (steps,) = conn.execute("SELECT COUNT(*) FROM batches").fetchone()
    finally:
        conn.close()
    counts = {
        "runs": runs,
        "steps": steps,
        "trajectories": trajectories,
        "calls": calls,
        "sampled_tokens": tokens,
    }
    return {**counts, "database_bytes": file.stat().st_size, **json.loads((folder / SEEDED).read_text())}


def asset_bytes() -> int:
    """Of the front end, each file compressed by itself."""
    files = [file for file in STATIC.rglob("*") if file.suffix in (".js", ".css", ".html", ".svg")]
    return sum(len(gzip.compress(file.read_bytes(), 9)) for file in files)


def show(console: Console, report: dict[str, Any]) -> None:
    table = Table("list", "median, ms", "worst, ms", "rows", "kB", title="bench-dashboard")
    for name, row in report["figures"]["lists"].items():
        figures = (row["median_ms"], row["worst_ms"], row["rows"], round(row["bytes"] / 1000, 1))
        table.add_row(name, *map(str, figures))
    console.print(table, report["figures"]["store"], report["figures"]["pages"])
    bars = Table("bar", "value", "target", "held")
    for one in report["bars"]:
        bars.add_row(one["name"], f"{one['value']:g}", one["target"], "yes" if one["ok"] else "NO")
    console.print(bars, f"written to {RESULTS}")


if __name__ == "__main__":
    sys.exit(main())
