"""Engines as the gateway sees them: one worker process per base model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from art.config.server import ServerConfig
from art.engine.protocol import AdapterCheck, AdapterRef, Engine, EngineCapabilities, Sampled, SampleRequest
from art.errors import DeadlineExceeded, InfraError
from art.server.supervise import Supervised, WorkerSpec
from art.types.jobs import ResolvedBaseModel
from art.types.wire import WorkerHealth


class WorkerEngine:
    """An Engine in a process of its own."""

    def __init__(self, worker: Supervised, *, silence: float) -> None:
        self.worker = worker
        self._silence = silence

    @property
    def generation(self) -> int:
        """Changes when the process is started anew: adapters loaded before are gone."""
        return self.worker.starts

    @property
    def capabilities(self) -> EngineCapabilities:
        ready = self.worker.ready_message
        if not ready:
            raise InfraError("the engine is not ready", hint="take it from the pool, which waits for it")
        return EngineCapabilities(**ready)

    async def generate(self, request: SampleRequest, on_event: Callable[[Sampled], None]) -> None:
        """Sample one choice to its end. Cancelling cancels it in the engine."""
        await self._call("generate", asdict(request), lambda event: on_event(_sampled(event)))

    async def load_adapter(self, ref: AdapterRef) -> AdapterCheck:
        return AdapterCheck(**await self._call("load_adapter", asdict(ref)))

    async def unload_adapter(self, version: str) -> None:
        await self._call("unload_adapter", {"version": version})

    async def probe(self, version: str, token_ids: list[int]) -> list[float]:
        result = await self._call("probe", {"version": version, "token_ids": token_ids})
        return [float(value) for value in result["logprobs"]]

    def stats(self) -> dict[str, Any]:
        return self.worker.stats

    async def _call(
        self, method: str, params: dict[str, Any], on_event: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        channel = await self.worker.channel()
        try:
            return await channel.call(method, params, silence=self._silence, on_event=on_event)
        except DeadlineExceeded:
            # A silent call may wait its turn. A silent engine hangs, and would let every further call run into this.
            if channel.quiet >= self._silence:
                self.worker.kill(f"it answered no request for {self._silence:.0f} s", hangs=True)
            raise


def _sampled(event: dict[str, Any]) -> Sampled:
    if event.get("top_logprobs"):
        rows = [[(int(token), float(logprob)) for token, logprob in row] for row in event["top_logprobs"]]
        event = {**event, "top_logprobs": rows}
    return Sampled(**event)


class EnginePool:
    """One engine per base model, started at its first use."""

    def __init__(self, settings: ServerConfig, root: Path) -> None:
        self._settings = settings
        self._logs = root / "server" / "logs"
        self._engines: dict[str, WorkerEngine] = {}

    async def get(self, base: ResolvedBaseModel) -> Engine:
        """The engine of a base model, ready. Raises what kept it from starting."""
        return await self.worker_engine(base)

    async def worker_engine(self, base: ResolvedBaseModel) -> WorkerEngine:
        """As `get`, with the engine's generation."""
        engine = self._engines.get(base.path)
        if engine is None:
            engine = WorkerEngine(Supervised(self._spec(base)), silence=self._settings.call_seconds)
            self._engines[base.path] = engine
        await engine.worker.channel()
        return engine

    def _spec(self, base: ResolvedBaseModel) -> WorkerSpec:
        wanted = self._settings.engine
        argv = [sys.executable, "-m", "art.engine.worker", "--engine", wanted.kind, "--base-model", base.path]
        argv += ["--dtype", wanted.dtype, "--prefix-cache" if wanted.prefix_cache else "--no-prefix-cache"]
        argv += ["--deterministic"] if self._settings.deterministic else []
        optional = {
            "--max-batch": wanted.max_batch,
            "--context": wanted.context,
            "--threads": wanted.threads,
            "--max-adapters": wanted.max_adapters,
            "--script": wanted.script,
            "--log": wanted.token_log,
        }
        for flag, value in optional.items():
            if value is not None:
                argv += [flag, str(value)]
        number = len(self._engines)
        return WorkerSpec(
            name="engine" if number == 0 else f"engine-{number}",
            argv=argv,
            log_file=self._logs / f"engine-{number}.log",
            start_seconds=self._settings.engine_start_seconds,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            threads=wanted.threads,
        )

    def workers(self) -> list[Supervised]:
        """Every engine that was asked for."""
        return [engine.worker for engine in self._engines.values()]

    def health(self) -> list[WorkerHealth]:
        return [engine.worker.health() for engine in self._engines.values()]

    async def stop(self) -> None:
        await asyncio.gather(*(engine.worker.stop() for engine in self._engines.values()))
