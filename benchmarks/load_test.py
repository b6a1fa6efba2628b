"""A server under load for half an hour: does its memory stay, does it give back its descriptors, does anything fail?

    make test-load                  30 minutes
    make test-load MINUTES=2        a short look; memory is then shown and not judged

One `art serve` with the torch engine and a tiny model. Dozens of clients in all dialects (load_clients), streams and not,
in rollouts and without; some leave before their answer or in the middle of it, some read slowly, some send large bodies,
and bursts ask for far more than is admitted; one program trains all the time. Once a second memory, descriptors and
threads of gateway, engine and trainer are written down, and what the clients got.

Writes load-test.json (figures and bars), load-test.csv (every sample) and load-test.png to benchmarks/results; exits 1
when a bar is missed: steady memory after the first third, no descriptor lost, no answer but 200 and 429.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import httpx2
from load_clients import Client, Tally, Trainer

from art.testing.server import ArtServer

RESULTS = Path(__file__).parent / "results"
CLIENTS = 24
ADMITTED = 48
BURST, BURST_EVERY = 120, 15.0
"""Calls at once, and seconds between two bursts."""
ENVIRONMENT = {
    "ART_ENGINE__THREADS": "1",
    "ART_TRAINER__THREADS": "1",
    "ART_ENGINE__MAX_BATCH": "16",
    "ART_SERVER__MAX_WAITING_CALLS": str(ADMITTED),
}
PROCESSES = ("gateway", "engine", "trainer")
WARM_SHARE = 1 / 3
"""Of the run: caches fill, among them the 4,096 conversations that the gateway knows by their history."""
LEAST_MINUTES = 9.0
"""From which on memory is judged."""
GROWTH_MIB, GROWTH_SHARE = 16.0, 0.05
"""What memory may have grown by at the end of the judged part, by the line through its samples: the larger of the two."""
SETTLE_SECONDS = 12.0
"""From the end of the load: a call whose client left goes on for ten seconds."""
SPARE_DESCRIPTORS = 8
"""A process may have this many more at the end: a database's log, a worker's pipe."""


class Sampler:
    """Looks at the server's processes once a second."""

    def __init__(self, server: ArtServer, tally: Tally) -> None:
        self._server = server
        self._tally = tally
        self._began = time.monotonic()
        self.rows: list[dict[str, float]] = []
        self.restarts = 0

    async def run(self, over: asyncio.Event) -> None:
        """Until `over`."""
        headers = {"Authorization": f"Bearer {self._server.admin_key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False) as http:
            while not over.is_set():
                await self.look(http)
                await asyncio.sleep(1.0)

    async def look(self, http: httpx2.AsyncClient) -> dict[str, float]:
        """One sample."""
        response = await http.get(f"{self._server.url}/api/v1/health")
        row: dict[str, float] = {"second": round(time.monotonic() - self._began, 1)}
        if response.status_code == 200:
            health = response.json()
            pids = {"gateway": health["pid"]} | {item["name"]: item["pid"] for item in health["workers"]}
            self.restarts = sum(item["restarts"] for item in health["workers"])
            for name in PROCESSES:
                if pid := pids.get(name):
                    row |= {f"{name}_{what}": value for what, value in look_at(pid).items()}
            stats = next((item["stats"] for item in health["workers"] if item["name"] == "engine"), {})
            row |= {f"engine_{name}": stats.get(name, 0) for name in ("running", "waiting")}
        row |= {
            "answered": self._tally.answered,
            "turned_away": self._tally.turned_away,
            "steps": self._tally.steps,
        }
        self.rows.append(row)
        return row


def look_at(pid: int) -> dict[str, float]:
    """Resident memory in MiB, descriptors and threads of a process; nothing where it has just ended."""
    folder = Path(f"/proc/{pid}")
    try:
        pages = int((folder / "statm").read_text().split()[1])
        return {
            "rss_mib": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 2),
            "descriptors": len(os.listdir(folder / "fd")),
            "threads": len(os.listdir(folder / "task")),
        }
    except FileNotFoundError:
        return {}


async def load(server: ArtServer, base: Path, *, minutes: float, seed: int) -> tuple[Sampler, Tally]:
    """The whole load, and a last look when everything has settled."""
    tally, over, key = Tally(), asyncio.Event(), server.admin_key
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=120, trust_env=False) as http:
        for project in ("load", "side"):
            body = {"project": project, "name": "m", "config": {"base_model": str(base)}}
            (await http.post(f"{server.url}/api/v1/models", json=body)).raise_for_status()
        warm = {"model": "side/m", "messages": [{"role": "user", "content": "yes or no?"}], "max_tokens": 4}
        (await http.post(f"{server.url}/v1/chat/completions", json=warm)).raise_for_status()
        sampler = Sampler(server, tally)
        await sampler.look(http)
        clients = [
            Client(server.url, key, ["load/m", "side/m"], tally, seed=seed + number)
            for number in range(CLIENTS)
        ]
        trainer = Trainer(server.url, key, "load/m", tally, seed=seed)
        work = [asyncio.create_task(item.run(over)) for item in (*clients, trainer, sampler)]
        work.append(asyncio.create_task(bursts(server, tally, over)))
        await asyncio.wait(work, timeout=60 * minutes, return_when=asyncio.FIRST_EXCEPTION)
        over.set()
        await asyncio.wait(work, timeout=180)
        for task in work:
            task.result()
        await asyncio.sleep(SETTLE_SECONDS)
        await sampler.look(http)
    return sampler, tally


async def bursts(server: ArtServer, tally: Tally, over: asyncio.Event) -> None:
    """Now and then far more calls than are admitted."""
    number = 0
    while not over.is_set():
        try:
            async with asyncio.timeout(BURST_EVERY):
                await over.wait()
        except TimeoutError:
            number += 1
            client = Client(server.url, server.admin_key, ["side/m"], tally, seed=1000 + number)
            await client.burst(BURST)
            await client.close()


def judged_part(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """The samples under load, after the warm-up."""
    under_load = rows[1:-1]
    return under_load[int(WARM_SHARE * len(under_load)) :]


def growth(rows: list[dict[str, float]], name: str) -> tuple[float, float]:
    """(median MiB, MiB by which the line through the samples rises from the first to the last)."""
    points = [(row["second"], row[f"{name}_rss_mib"]) for row in rows if f"{name}_rss_mib" in row]
    seconds, sizes = [point[0] for point in points], [point[1] for point in points]
    if len(set(seconds)) < 2:
        return (median(sizes) if sizes else 0.0), 0.0
    return median(sizes), linear_regression(seconds, sizes).slope * (seconds[-1] - seconds[0])


def report(sampler: Sampler, tally: Tally, *, minutes: float) -> dict[str, Any]:
    """The result file."""
    rows, lines = sampler.rows, []
    first, last, steady = rows[0], rows[-1], judged_part(rows)
    memory: dict[str, Any] = {}
    for name in PROCESSES:
        middle, grown = growth(steady, name)
        memory[name] = {"median_mib": round(middle, 1), "growth_mib": round(grown, 2), "minutes": round(
            (steady[-1]["second"] - steady[0]["second"]) / 60, 1) if steady else 0.0}  # fmt: skip
        if minutes >= LEAST_MINUTES:
            lines.append(
                (f"growth of the {name}, MiB", round(grown, 2), max(GROWTH_MIB, GROWTH_SHARE * middle), False)
            )
        lost = last.get(f"{name}_descriptors", 0) - first.get(f"{name}_descriptors", 0)
        lines.append((f"descriptors that the {name} has more", lost, SPARE_DESCRIPTORS, False))
    lines += [
        ("answers that are neither 200 nor 429, and broken ones", len(tally.unexpected), 0, False),
        ("429s without Retry-After", tally.without_retry_after, 0, False),
        ("workers started anew", sampler.restarts, 0, False),
        ("calls turned away", tally.turned_away, 1, True),
        ("steps trained", tally.steps, 1, True),
    ]
    return {
        "machine": {
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": {
            "minutes": minutes,
            "answered": tally.answered,
            "turned_away": tally.turned_away,
            "statuses": dict(sorted(tally.statuses.items())),
            "behaviours": dict(sorted(tally.behaviours.items())),
            "steps": tally.steps,
            "memory": memory,
            "first_sample": first,
            "last_sample": last,
            "unexpected": tally.unexpected[:10],
        },
        "bars": [
            {
                "name": name,
                "value": value,
                "target": target,
                "ok": value >= target if least else value <= target,
            }
            for name, value, target, least in lines
        ],
    }


def write_samples(rows: list[dict[str, float]], file: Path) -> None:
    """Every sample as a line of CSV."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with file.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, names)
        writer.writeheader()
        writer.writerows(rows)


def draw(rows: list[dict[str, float]], file: Path) -> None:
    """Memory, descriptors and answers over time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 9), layout="constrained")
    FigureCanvasAgg(figure)
    memory, descriptors, answers = figure.subplots(3, 1, sharex=True)
    for name in PROCESSES:
        seen = [row for row in rows if f"{name}_rss_mib" in row]
        minutes = [row["second"] / 60 for row in seen]
        memory.plot(minutes, [row[f"{name}_rss_mib"] for row in seen], label=name)
        descriptors.plot(minutes, [row[f"{name}_descriptors"] for row in seen], label=name)
    minutes = [row["second"] / 60 for row in rows]
    answers.plot(minutes, [row["answered"] for row in rows], label="calls answered")
    answers.plot(minutes, [row["turned_away"] for row in rows], label="calls turned away (429)")
    for axes, title in ((memory, "resident memory, MiB"), (descriptors, "descriptors"), (answers, "so far")):
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="best")
    answers.set_xlabel("minutes")
    memory.set_title("art serve under load")
    figure.savefig(file, dpi=120)


def main() -> int:
    """The run as the command line asks for it."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from art.testing.tiny import tiny_model

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # more would only wait for one another
    console = Console()
    with tempfile.TemporaryDirectory(prefix="load-test-", ignore_cleanup_errors=True) as scratch:
        base = tiny_model(Path(scratch) / "tiny")
        with ArtServer(Path(scratch) / "serve", engine="torch", environment=ENVIRONMENT) as server:
            sampler, tally = asyncio.run(load(server, base, minutes=options.minutes, seed=options.seed))
    told = report(sampler, tally, minutes=options.minutes)
    options.out.mkdir(exist_ok=True)
    (options.out / "load-test.json").write_text(json.dumps(told, indent=1) + "\n")
    write_samples(sampler.rows, options.out / "load-test.csv")
    draw(sampler.rows, options.out / "load-test.png")
    table = Table("bar", "value", "target", "", title="load-test")
    for line in told["bars"]:
        verdict = "ok" if line["ok"] else "[red]missed[/red]"
        table.add_row(line["name"], f"{line['value']:g}", f"{line['target']:g}", verdict)
    console.print(table)
    if options.minutes < LEAST_MINUTES:
        console.print(f"under {LEAST_MINUTES:g} minutes memory is not judged: {told['figures']['memory']}")
    console.print(f"written to {options.out}")
    return 0 if all(line["ok"] for line in told["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
