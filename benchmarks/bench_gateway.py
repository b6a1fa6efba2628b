"""What the gateway adds to its engine's own pace, and what a thousand sessions cost it.

    make bench-gateway                      everything, about six minutes
    make bench-gateway ARGS="--quick"       a short look, with fewer calls and without the other gateways

The scripted engine samples 64 tokens at 20 ms each in a process of its own; the load is a third process
(`gateway_load.py`). The same sessions first talk to an engine worker directly, then to `art serve` over HTTP, streaming;
"added" is the difference of the two at the same percentile. Further: 1,000 sessions that stream at once, the pace of
each dialect at 50 ms a token, and other open gateways beside our pass-through before one fake upstream.

All processes share the machine's cores. Writes benchmarks/results/bench-gateway.json; exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx2
from gateway_load import NEW_TOKENS
from gateway_others import KEY, OTHERS, Running, Unavailable
from rich.console import Console
from rich.table import Table

from art.testing.server import ArtServer
from art.testing.tiny import tiny_model

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "bench-gateway.json"
TOKEN_MS, PACE_MS = 20, 50
CALLS = {1: 24, 32: 8, 256: 3}
"""Calls of each session, by the number of sessions."""
ROUNDS = {32: 5}
"""Rounds of engine and gateway in turn, where a bar stands on the figure: a shared machine's own speed changes."""
MANY = 1000
THINK_MS = 60.0
"""Longest pause before a call: three steps of the engine, so that calls come at every phase of one."""
DIALECTS = ("chat", "responses", "anthropic")
ENVIRONMENT = {"ART_ENGINE__MAX_BATCH": "1024", "ART_SERVER__MAX_WAITING_CALLS": "2048"}
TICKS = "tick " * 200


def main() -> int:
    options = parse_arguments()
    console = Console()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options, Path(scratch), console)
        bench.overhead()
        bench.pace()
        bench.pass_through()
    report = bench.report()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    show(console, report)
    return 0 if all(bar["ok"] for bar in report["bars"]) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer calls, no other gateways")
    parser.add_argument("--many", type=int, default=MANY, help="sessions that stream at once")
    parser.add_argument("--others", type=Path, default=Path(".art/bench-gateways"), help="their environments")
    return parser.parse_args()


class Bench:
    """One run and its figures."""

    def __init__(self, options: argparse.Namespace, scratch: Path, console: Console) -> None:
        self.options = options
        self.scratch = scratch
        self.console = console
        self.load_at_start = os.getloadavg()[0]
        if self.load_at_start > 1.0:
            console.print(
                f"[yellow]load average {self.load_at_start:.1f}: other work spoils the figures[/yellow]"
            )
        self.base_model = tiny_model(scratch / "tiny", warm_steps=0)  # only its tokenizer speaks
        self.figures: dict[str, Any] = {}

    # -- what the gateway adds

    def overhead(self) -> None:
        """At 1, 32 and 256 sessions, the engine directly and then through the gateway; then many sessions at once."""
        script = {"default": TICKS, "token_delay_ms": TOKEN_MS}
        with ArtServer(self.scratch / "serve", script=script, environment=ENVIRONMENT) as server:
            sessions = open_sessions(server, str(self.base_model), self.options.many)
            self._load_http(server, sessions[:1], calls=2)  # warm
            for count, calls in CALLS.items():
                calls = max(1, calls // 4) if self.options.quick else calls
                rounds = [
                    compare(
                        self._load_engine(count, calls),
                        self._load_http(server, sessions[:count], calls=calls),
                    )
                    for _ in range(1 if self.options.quick else ROUNDS.get(count, 1))
                ]
                self.figures[f"at {count}"] = middle(rounds)
                self.say(f"{count} sessions", self.figures[f"at {count}"])
            self._many(server, sessions)

    def _many(self, server: ArtServer, sessions: list[dict[str, Any]]) -> None:
        assert server.process is not None
        with sampling_memory(server.process.pid) as memory:
            served = self._load_http(server, sessions, calls=1, think_ms=0.0)
        self.figures[f"{len(sessions)} at once"] = {
            "completed": len(served["total_ms"]),
            "errors": len(served["errors"]),
            "first_errors": served["errors"][:3],
            "tokens": sum(served["deltas"]),
            "total_s_p50": median(served["total_ms"] or [0.0]) / 1000,
            "total_s_max": max(served["total_ms"] or [0.0]) / 1000,
            "rss_mib_before": memory[0],
            "rss_mib_peak": max(memory),
            "rss_mib_after": memory[-1],
            "gateway_cpu_s": served["gateway_cpu_s"],
            "load_cpu_share": served["cpu_share"],
        }
        self.say("many", self.figures[f"{len(sessions)} at once"])

    def _load_engine(self, sessions: int, calls: int) -> dict[str, Any]:
        script = self.scratch / "direct.json"
        script.write_text(json.dumps({"default": TICKS, "token_delay_ms": TOKEN_MS}))
        arguments = ["--engine", "scripted", "--base-model", str(self.base_model), "--script", str(script)]
        job = {"kind": "engine", "arguments": [*arguments, "--max-batch", "1024"], "sessions": sessions}
        return run_load({**job, "calls": calls, "think_ms": THINK_MS})

    def _load_http(
        self,
        server: ArtServer,
        sessions: list[dict[str, Any]],
        *,
        calls: int,
        think_ms: float = THINK_MS,
        dialect: str = "chat",
    ) -> dict[str, Any]:
        assert server.process is not None
        before = cpu_seconds(server.process.pid)
        job = {"kind": "http", "sessions": sessions, "calls": calls, "dialect": dialect, "think_ms": think_ms}
        served = run_load(job)
        served["gateway_cpu_s"] = cpu_seconds(server.process.pid) - before
        return served

    # -- the pace of a stream

    def pace(self) -> None:
        """The median gap between the deltas that a client sees, in each dialect, four streams at a time."""
        script = {"default": TICKS, "token_delay_ms": PACE_MS}
        with ArtServer(self.scratch / "pace", script=script, environment=ENVIRONMENT) as server:
            sessions = open_sessions(server, str(self.base_model), 4)
            for dialect in DIALECTS:
                served = self._load_http(server, sessions, calls=1, dialect=dialect)
                gaps = served["gaps_ms"]
                self.figures[f"pace, {dialect}"] = {
                    "gap_ms_p50": median(gaps) if gaps else 0.0,
                    "gap_ms_p99": percentile(gaps, 99),
                    "deltas_per_call": median(served["deltas"] or [0]),
                    "errors": served["errors"][:3],
                }
                self.say(f"pace, {dialect}", self.figures[f"pace, {dialect}"])

    # -- other gateways

    def pass_through(self) -> None:
        """Ours and others before the same fake upstream, 32 sessions."""
        fake = subprocess.Popen(
            [sys.executable, str(HERE / "gateway_fake.py"), str(TOKEN_MS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert fake.stdin is not None
        assert fake.stdout is not None
        try:
            upstream = f"http://127.0.0.1:{int(fake.stdout.readline())}/v1"
            self._compare_gateways(upstream)
        finally:
            fake.stdin.close()
            fake.wait(10)

    def _compare_gateways(self, upstream: str) -> None:
        sessions, calls = (8, 2) if self.options.quick else (32, 4)
        job = {"kind": "http", "calls": calls, "dialect": "chat", "think_ms": THINK_MS, "mark": "tick "}

        def measure(url: str, key: str, pid: int | None) -> dict[str, Any]:
            before = cpu_seconds(pid) if pid else 0.0
            session = {"url": url, "key": key, "model": "fake"}
            load = run_load({**job, "sessions": [session] * sessions})
            load["gateway_cpu_s"] = cpu_seconds(pid) - before if pid else 0.0
            return load

        direct = measure(upstream, "none", None)
        found: dict[str, Any] = {}
        environment = {**ENVIRONMENT, "ART_SERVER__UPSTREAMS": json.dumps({"fake": {"base_url": upstream}})}
        with ArtServer(self.scratch / "upstream", environment=environment) as server:
            assert server.process is not None
            measure(f"{server.url}/v1", server.admin_key, server.process.pid)  # warm
            served = measure(f"{server.url}/v1", server.admin_key, server.process.pid)
            found["art (server.upstreams)"] = compare(direct, served)
        for other in () if self.options.quick else OTHERS:
            try:
                running = Running(other, self.options.others, self.scratch, upstream)
            except Unavailable as error:
                found[other.name] = {"not measured": str(error)}
                continue
            try:
                measure(running.url, KEY, running.process.pid)  # warm
                found[other.name] = compare(direct, measure(running.url, KEY, running.process.pid))
            finally:
                running.close()
        self.figures[f"pass-through, {sessions} sessions"] = found
        for name, figures in found.items():
            self.say(f"pass-through, {name}", figures)

    # -- report

    def report(self) -> dict[str, Any]:
        many = self.figures[f"{self.options.many} at once"]
        bars = [
            bar(
                "added to first token at 32 sessions, p50, ms",
                self.figures["at 32"]["added_first_ms"]["p50"],
                10,
            ),
            bar(f"errors of {self.options.many} sessions at once", many["errors"], 0),
            bar(f"of {self.options.many} sessions not completed", self.options.many - many["completed"], 0),
            bar(
                "memory that they add at their peak, MiB", many["rss_mib_peak"] - many["rss_mib_before"], 512
            ),
        ]
        for dialect in DIALECTS:
            gap = self.figures[f"pace, {dialect}"]["gap_ms_p50"]
            bars.append(bar(f"median gap at {PACE_MS} ms a token, {dialect}, ms", gap, 60))
            bars.append(bar(f"the same, at least ({dialect})", gap, 40, least=True))
        return {
            "machine": {
                "platform": platform.platform(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "load_average": [round(self.load_at_start, 2), round(os.getloadavg()[0], 2)],
            },
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "figures": {"tokens_per_call": NEW_TOKENS, "token_ms": TOKEN_MS, **self.figures},
            "bars": bars,
        }

    def say(self, what: str, figures: dict[str, Any]) -> None:
        self.console.print(f"{what}: {json.dumps(figures)}", highlight=False)


def open_sessions(server: ArtServer, base_model: str, count: int) -> list[dict[str, Any]]:
    """A registered model and `count` open rollouts of it."""
    with httpx2.Client(
        base_url=f"{server.url}/api/v1/", headers={"Authorization": f"Bearer {server.admin_key}"}, timeout=120
    ) as api:
        config = {"base_model": base_model}
        model = {"project": "bench", "name": "m", "config": config}
        api.post("models", json=model).raise_for_status()
        opened = [
            api.post("rollouts", json={"model": "bench/m"}).raise_for_status().json() for _ in range(count)
        ]
    return [{"url": item["base_url"], "key": item["api_key"], "model": "bench/m"} for item in opened]


def run_load(job: dict[str, Any]) -> dict[str, Any]:
    """One job of the load process."""
    done = subprocess.run(
        [sys.executable, str(HERE / "gateway_load.py")],
        input=json.dumps(job), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the load process failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def compare(direct: dict[str, Any], served: dict[str, Any]) -> dict[str, Any]:
    """What `served` adds to `direct`, at the same percentile of each."""
    out: dict[str, Any] = {"calls": len(served["total_ms"]), "errors": len(served["errors"])}
    if served["errors"]:
        out["first_errors"] = served["errors"][:3]
    if not served["total_ms"] or not direct["total_ms"]:
        return out
    for name in ("first", "total"):
        ours, own = served[f"{name}_ms"], direct[f"{name}_ms"]
        out[f"direct_{name}_ms"] = {"p50": percentile(own, 50), "p99": percentile(own, 99)}
        out[f"added_{name}_ms"] = {
            q: percentile(ours, p) - percentile(own, p) for q, p in (("p50", 50), ("p99", 99))
        }
    calls, cpu = len(served["total_ms"]), served["gateway_cpu_s"]
    out["calls_per_s"] = calls / served["wall_s"]
    out["calls_per_s_and_core"] = calls / cpu if cpu else 0.0
    out["gateway_cpu_us_per_token"] = 1e6 * cpu / max(1, sum(served["deltas"]))
    out["deltas_per_call"] = median(served["deltas"])
    out["load_cpu_share"] = served["cpu_share"]
    return out


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The round with the median of what was added to the first token, and that figure of every round in order."""
    added = [found.get("added_first_ms", {}).get("p50", math.inf) for found in rounds]
    chosen = rounds[added.index(sorted(added)[len(added) // 2])]
    errors = sum(found["errors"] for found in rounds)
    return {**chosen, "errors": errors, "added_first_ms_p50_by_round": added}


def percentile(values: list[float], percent: int) -> float:
    """By linear interpolation; 0 without values."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def bar(name: str, value: float, target: float, *, least: bool = False) -> dict[str, Any]:
    """One line of the verdict; `least` says that the target is a lower bound."""
    return {
        "name": name,
        "value": value,
        "target": target,
        "ok": value >= target if least else value <= target,
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def sampling_memory(pid: int) -> Iterator[list[float]]:
    """Resident memory, MiB: before, ten times a second while the `with` lasts, and after."""
    samples, over = [rss_mib(pid)], threading.Event()

    def sample() -> None:
        while not over.wait(0.1):
            samples.append(rss_mib(pid))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
        time.sleep(1)  # its calls are recorded and forgotten
        samples.append(rss_mib(pid))


def show(console: Console, report: dict[str, Any]) -> None:
    table = Table("bar", "value", "target", "", title="bench-gateway")
    for line in report["bars"]:
        verdict = "ok" if line["ok"] else "[red]missed[/red]"
        table.add_row(line["name"], f"{line['value']:.2f}", f"{line['target']:g}", verdict)
    console.print(table)
    console.print(f"written to {RESULTS}")


if __name__ == "__main__":
    sys.exit(main())
