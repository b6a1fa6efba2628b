"""Adapters come and go under load, and every token is looked at: is it one of the adapter that was asked for?

    make test-swaps                      1,000 loads, some minutes
    make test-swaps ARGS="--swaps 100"   fewer

A tiny model and a handful of random adapters, whose greedy answers are first written down one adapter at a time, by an
engine that holds no other and serves one call at a time. Then the same adapters are published as steps of several models,
in the gateway's own code (`server/versions`, `slots`, `turns`) and with a real engine process that has room for few of
them. Calls ask for hot and for rare versions, some leave in the middle of their answer; meanwhile steps are published,
deleted and rolled back, and the engine is killed now and then. Each token of each call is compared with its version's
own answer.

Writes benchmarks/results/adapter-swaps.json; exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from adapter_references import ADAPTERS, PROBE, TOKENS, References, greedy

from art.config.engine import EngineConfig
from art.config.model import ModelConfig
from art.config.server import ServerConfig
from art.engine.protocol import AdapterCheck, AdapterRef, Sampled
from art.errors import ArtError, Conflict, InfraError, NotFound
from art.server.engines import EnginePool
from art.server.versions import ModelEntry, Versions
from art.store.records import ModelRow
from art.store.store import Store
from art.types.jobs import CheckpointInfo, ResolvedBaseModel

RESULTS = Path(__file__).parent / "results" / "adapter-swaps.json"
MODELS = (("one", "a"), ("one", "b"), ("two", "a"), ("two", "b"))
AGENTS = 12
SLOTS = 3
BATCH = 4
HOT = 0.75
"""Part of the calls that ask for one of two latest steps; the others ask for any step of any model."""
LEAVING = 0.15
"""Part of the calls whose client goes away in the middle."""
STEPS_KEPT = 4
KILL_EVERY = 200
"""Swaps between two kills of the engine."""
STUCK_SECONDS = 120.0


@dataclass
class Seen:
    """What a run saw."""

    swaps: int = 0
    """Adapters that the engine loaded."""
    unloads: int = 0
    beside: list[int] = field(default_factory=list)
    """Calls that were not answered yet, at each swap."""
    sampling: list[int] = field(default_factory=list)
    """Those of them that had a place in the engine."""
    calls: int = 0
    left: int = 0
    tokens: int = 0
    wrong: list[dict[str, Any]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    first_errors: dict[str, str] = field(default_factory=dict)
    churn: Counter[str] = field(default_factory=Counter)


class Swaps:
    """One run: models, their steps, the calls, and what was seen."""

    def __init__(self, root: Path, base: Path, references: References, *, seed: int) -> None:
        self.seen = Seen()
        self.references = references
        self._root = root
        self._base = ResolvedBaseModel(
            name="tiny", path=str(base), sha256="x", parameters=1, context_length=1024, source="folder"
        )
        engine = EngineConfig(
            kind="torch", dtype="fp32", threads=1, max_batch=BATCH, max_adapters=SLOTS, context=256
        )
        self._engines = EnginePool(ServerConfig(path=root, engine=engine), root)
        self._rng = random.Random(seed)
        self._adapter_of: dict[str, int] = {}
        self._last_step: Counter[tuple[str, str]] = Counter()
        self._under_way = 0
        self._sampling = 0

    async def run(self, swaps: int, *, kills: bool) -> Seen:
        """Load until the engine has loaded `swaps` adapters. TimeoutError when none was for STUCK_SECONDS."""
        store = await Store.open(self._root / "server")
        try:
            self.versions = Versions(store, self._engines)
            self._entries = [await self._model(store, *key) for key in MODELS]
            engine = await self._engines.worker_engine(self._base)
            self._count(engine)
            for entry in self._entries:
                await self._publish(entry)
            over = asyncio.Event()
            work = [asyncio.create_task(self._agent(f"agent {n}", over)) for n in range(AGENTS)]
            work.append(asyncio.create_task(self._churn(over)))
            try:
                await self._until(swaps, work, engine if kills else None)
            finally:
                over.set()
                await asyncio.wait(work, timeout=STUCK_SECONDS)
            for task in work:
                task.result()
        finally:
            await self._engines.stop()
            await store.close()
        return self.seen

    async def _until(self, swaps: int, work: list[asyncio.Task[None]], killed: Any) -> None:
        last, since, next_kill = 0, time.monotonic(), KILL_EVERY
        while self.seen.swaps < swaps:
            done, _ = await asyncio.wait(work, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            if done:
                raise RuntimeError("an agent ended by itself") from next(iter(done)).exception()
            if self.seen.swaps != last:
                last, since = self.seen.swaps, time.monotonic()
            if time.monotonic() - since > STUCK_SECONDS:
                raise TimeoutError(f"no adapter was loaded for {STUCK_SECONDS:.0f} s: {self.seen.errors}")
            if killed is not None and last >= next_kill and (pid := killed.worker.health().pid):
                os.kill(pid, signal.SIGKILL)
                self.seen.churn["engine killed"] += 1
                next_kill = last + KILL_EVERY

    def _count(self, engine: Any) -> None:
        """Count what the engine loads and unloads, and what ran beside it."""
        load, unload = engine.load_adapter, engine.unload_adapter

        async def load_adapter(ref: AdapterRef) -> AdapterCheck:
            self.seen.beside.append(self._under_way)
            self.seen.sampling.append(self._sampling)
            check: AdapterCheck = await load(ref)
            self.seen.swaps += 1
            return check

        async def unload_adapter(version: str) -> None:
            await unload(version)
            self.seen.unloads += 1

        engine.load_adapter, engine.unload_adapter = load_adapter, unload_adapter

    # -- models and their steps

    async def _model(self, store: Store, project: str, name: str) -> ModelEntry:
        row = ModelRow(
            project=project,
            name=name,
            config=ModelConfig(base_model="tiny"),
            base=self._base,
            model_dir=str(self._root / project / name),
        )
        await store.put_model(row)
        entry = await self.versions.add(row)
        self._adapter_of[entry.version(0)] = 0
        await self.versions.publish(
            entry, CheckpointInfo(project=project, name=name, step=0, path="", is_base=True)
        )
        return entry

    async def _publish(self, entry: ModelEntry) -> None:
        """A random adapter as the model's next step."""
        adapter = self._rng.randrange(1, ADAPTERS)
        self._last_step[entry.key] += 1
        step = self._last_step[entry.key]
        source = self.references.folders[adapter]
        assert source is not None
        folder = Path(shutil.copytree(source, self._root / entry.wire_name / f"{step:04d}"))
        self._adapter_of[entry.version(step)] = adapter
        info = CheckpointInfo(
            project=entry.row.project,
            name=entry.row.name,
            step=step,
            path=str(folder),
            probe_token_ids=PROBE,
            probe_logprobs=self.references.probes[adapter],
            sha256=sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest(),
            created_at=time.time(),
        )
        await self.versions.publish(entry, info)
        self.seen.churn["published"] += 1

    async def _churn(self, over: asyncio.Event) -> None:
        """Publish, delete and roll back at random."""
        while not over.is_set():
            entry = self._rng.choice(self._entries)
            try:
                await self._change(entry)
            except Conflict:
                self.seen.churn["refused: in use"] += 1
            except ArtError as error:
                self._failed(error)
            await asyncio.sleep(0.02)

    async def _change(self, entry: ModelEntry) -> None:
        steps = sorted(step for step in entry.checkpoints if step not in (0, entry.step))
        if len(steps) >= STEPS_KEPT:
            step = self._rng.choice(steps)
            folder = entry.checkpoint(step).path
            await self.versions.forget(entry, step)
            shutil.rmtree(folder)
            self.seen.churn["deleted"] += 1
        elif steps and self._rng.random() < 0.3:
            await self.versions.roll_back(entry, self._rng.choice(steps))
            self.seen.churn["rolled back"] += 1
        else:
            await self._publish(entry)

    # -- calls

    async def _agent(self, session: str, over: asyncio.Event) -> None:
        while not over.is_set():
            entry = self._rng.choice(
                self._entries[:2] if (hot := self._rng.random() < HOT) else self._entries
            )
            step = entry.step if hot else self._rng.choice(list(entry.checkpoints))
            self.seen.calls += 1
            self._under_way += 1
            try:
                await self._call(session, entry, step)
            except ArtError as error:
                self._failed(error)
                await asyncio.sleep(0.05)
            finally:
                self._under_way -= 1

    async def _call(self, session: str, entry: ModelEntry, step: int) -> None:
        """One call, as `server/generation` makes it; some are left in the middle, as when their client goes."""
        prompt = self._rng.randrange(len(self.references.prompts))
        leave_at = self._rng.randrange(1, TOKENS) if self._rng.random() < LEAVING else None
        tokens: list[int] = []

        def take(event: Sampled) -> None:
            for token in event.token_ids:
                self._compare(entry.version(step), prompt, len(tokens), token)
                tokens.append(token)
            if leave_at is not None and len(tokens) >= leave_at:
                sampling.cancel()

        with self.versions.hold(entry, step):
            sampling = asyncio.create_task(self._sample(session, entry, step, prompt, take))
            await asyncio.wait([sampling])
        if sampling.cancelled():
            self.seen.left += 1
        elif (error := sampling.exception()) is not None:
            raise error
        elif len(tokens) != TOKENS:
            self.seen.wrong.append({"version": entry.version(step), "tokens": len(tokens)})

    async def _sample(self, session: str, entry: ModelEntry, step: int, prompt: int, take: Any) -> None:
        for again in (True, True, False):
            async with self.versions.turn(entry, session), self.versions.lease(entry, step) as lease:
                request = greedy(self.references.prompts[prompt], lease.version, cache_salt=lease.salt)
                self._sampling += 1
                try:
                    await lease.engine.generate(request, take)
                    return
                except NotFound as error:
                    self.versions.lost(entry, step)
                    if not again:
                        raise InfraError("the engine holds it no more", cause=str(error)) from error
                finally:
                    self._sampling -= 1

    def _compare(self, version: str, prompt: int, at: int, token: int) -> None:
        self.seen.tokens += 1
        answers = self.references.answers
        wanted = answers[self._adapter_of[version]][prompt]
        if at < len(wanted) and token == wanted[at]:
            return
        whose = [n for n, said in enumerate(answers) if said[prompt][at : at + 1] == [token]]
        self.seen.wrong.append(
            {"version": version, "adapter": self._adapter_of[version], "at": at, "token": token, "of": whose}
        )

    def _failed(self, error: ArtError) -> None:
        self.seen.errors[error.code] += 1
        self.seen.first_errors.setdefault(error.code, str(error))


def report(seen: Seen, *, swaps: int, seconds: float) -> dict[str, Any]:
    """The result file."""
    killed = seen.churn["engine killed"]
    # What ran in an engine that was killed is told so; a call that finds it gone may be.
    unexplained = (
        sum(seen.errors.values()) if not killed else seen.errors.total() - seen.errors["worker_died"]
    )
    idle = sum(beside == 0 for beside in seen.beside)
    lines = [
        ("swaps", seen.swaps, swaps, True),
        ("tokens of a wrong version", len(seen.wrong), 0, False),
        ("tokens compared", seen.tokens, 10 * swaps, True),
        (
            "swaps without a call under way",
            idle,
            len(MODELS),
            False,
        ),  # the first steps, before the load begins
        ("errors beside those of a killed engine", unexplained, 0, False),
    ]
    return {
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": {
            "seconds": round(seconds, 1),
            "calls": seen.calls,
            "calls_left_in_the_middle": seen.left,
            "unloads": seen.unloads,
            "calls_under_way_at_a_swap": sorted(seen.beside)[len(seen.beside) // 2] if seen.beside else 0,
            "calls_in_the_engine_at_a_swap": sorted(seen.sampling)[len(seen.sampling) // 2]
            if seen.sampling
            else 0,
            "changes": dict(seen.churn),
            "errors": dict(seen.errors),
            "first_errors": seen.first_errors,
            "first_wrong": seen.wrong[:5],
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


def main() -> int:
    """The run as the command line asks for it."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from art.testing.tiny import tiny_model

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--swaps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # more would only wait for one another
    console, began = Console(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="adapter-swaps-", ignore_cleanup_errors=True) as scratch:
        base = tiny_model(Path(scratch) / "tiny", warm=False)
        references = References.take(base, Path(scratch) / "adapters", seed=options.seed)
        console.print(f"{len(references.prompts)} prompts tell {ADAPTERS} adapters apart")
        swaps = Swaps(Path(scratch) / "run", base, references, seed=options.seed)
        seen = asyncio.run(swaps.run(options.swaps, kills=True))
    told = report(seen, swaps=options.swaps, seconds=time.monotonic() - began)
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    table = Table("bar", "value", "target", "", title="adapter-swaps")
    for line in told["bars"]:
        verdict = "ok" if line["ok"] else "[red]missed[/red]"
        table.add_row(line["name"], str(line["value"]), str(line["target"]), verdict)
    console.print(table)
    console.print(f"{told['figures']}; written to {options.out}")
    return 0 if all(line["ok"] for line in told["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
