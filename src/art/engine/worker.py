"""The engine's process: `python -m art.engine.worker`, speaking `art.ipc` as engine/protocol.py says.

Three threads. The reader takes frames from the gateway; the main thread owns the engine: it handles what
arrived, runs one step, sends the step's events in one frame; the heartbeat beats by itself, so that a long
step is not taken for a dead process.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from art.engine.protocol import Sampled
from art.engine.requests import as_result, check_token_ids, parse_adapter, parse_sample, sampled_message
from art.engine.step import StepEngine
from art.errors import ArtError, ConfigError, InfraError, InvalidInput, Overloaded, WorkerDied
from art.ipc import Message, WorkerChannel

logger = logging.getLogger(__name__)

WAITING_PER_PLACE = 64
"""Requests that may wait for each place of the engine. A gateway sends only a few more than there are places."""
PR_SET_PDEATHSIG = 1
"""Linux's prctl: the signal this process gets when the thread that started it ends."""


class Worker:
    """Ties a StepEngine to a channel."""

    def __init__(self, engine: StepEngine, channel: WorkerChannel) -> None:
        self._engine = engine
        self._channel = channel
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._running: set[int] = set()
        self._open: dict[int, None] = {}
        """Requests without a last message; one thread adds, another removes, a third copies."""
        self._methods: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "load_adapter": self._load_adapter,
            "unload_adapter": self._unload_adapter,
            "probe": self._probe,
        }

    def run(self) -> None:
        """Serve until the gateway goes. An engine that fails ends every pending request with the cause, then raises."""
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        idle = True
        while True:
            out: list[Message] = []
            for message in self._arrived(wait=idle):
                self._handle(message, out)
            try:
                events = self._engine.step()
            except Exception as error:
                self._fail_all(error)
                raise
            idle = events is None
            for key, event in events or ():
                self._report(key, event, out)
            if out:
                self._send(out)

    @property
    def requests(self) -> set[int]:
        """Taken and not answered, for the heartbeat."""
        return set(self._open)

    def _send(self, out: list[Message]) -> None:
        """Send a step's messages. A choice whose numbers are not finite ends with an error, the others go on."""
        unsent = self._channel.send(out)
        for key in sorted(unsent & self._running):
            logger.error("an event of request %d could not be sent: it ends with an error", key)
            self._running.discard(key)
            self._engine.cancel(key)
        for message in out:
            if message["id"] in unsent or "result" in message or "error" in message:
                self._open.pop(message["id"], None)

    def _read(self) -> None:
        while (messages := self._channel.receive()) is not None:
            for message in messages:
                if not message.get("cancel"):
                    # Known from here on: the step in progress may take longer than a few heartbeats.
                    self._open[int(message["id"])] = None
                self._inbox.put(message)
        # The gateway has gone: nobody is left to answer, and a step may take seconds.
        os._exit(0)

    def _arrived(self, *, wait: bool) -> list[Message]:
        messages = [self._inbox.get()] if wait else []
        while True:
            try:
                messages.append(self._inbox.get_nowait())
            except queue.Empty:
                return messages

    def _handle(self, message: Message, out: list[Message]) -> None:
        key = int(message["id"])
        if message.get("cancel"):
            self._engine.cancel(key)
            return
        try:
            method, params = str(message.get("method")), dict(message.get("params") or {})
            if method == "generate":
                self._check_room()
                self._engine.submit(key, parse_sample(params, self._engine.capabilities))
                self._running.add(key)
            elif method in self._methods:
                out.append({"id": key, "result": self._methods[method](params)})
            else:
                raise InvalidInput(
                    f"unknown method {method!r}", hint=f"known: generate, {', '.join(self._methods)}"
                )
        except ArtError as error:
            out.append({"id": key, "error": error.to_dict()})
        except Exception as error:  # a boundary: one bad request must not end the others
            logger.exception("request %d failed", key)
            failed = InfraError(
                "the engine could not serve this request",
                cause=f"{type(error).__name__}: {error}",
                hint="see the engine's log in server/logs",
            )
            out.append({"id": key, "error": failed.to_dict()})

    def _check_room(self) -> None:
        """Overloaded when too many requests wait already."""
        bound = (1 + WAITING_PER_PLACE) * self._engine.capabilities.max_batch
        if len(self._running) >= bound:
            raise Overloaded(
                f"the engine has {len(self._running)} requests", hint="send it more when some have ended"
            )

    def _report(self, key: int, event: Sampled | ArtError, out: list[Message]) -> None:
        if isinstance(event, ArtError):
            self._running.discard(key)
            out.append({"id": key, "error": event.to_dict()})
            return
        out.append(sampled_message(key, event))
        if event.finish_reason is not None:
            self._running.discard(key)
            out.append({"id": key, "result": {}})

    def _fail_all(self, error: Exception) -> None:
        died = WorkerDied(
            "the engine failed in the middle of a step",
            cause=f"{type(error).__name__}: {error}",
            hint="it is started anew; the rollouts in flight are infra_error",
        )
        logger.critical("engine step failed", exc_info=error)
        if self._running:
            self._channel.send([{"id": key, "error": died.to_dict()} for key in sorted(self._running)])

    def _load_adapter(self, params: dict[str, Any]) -> dict[str, Any]:
        return as_result(self._engine.load_adapter(parse_adapter(params, self._engine.capabilities)))

    def _unload_adapter(self, params: dict[str, Any]) -> dict[str, Any]:
        self._engine.unload_adapter(str(params.get("version", "")))
        return {}

    def _probe(self, params: dict[str, Any]) -> dict[str, Any]:
        token_ids = params.get("token_ids")
        check_token_ids("token_ids", token_ids, self._engine.capabilities.vocab_size)
        return {"logprobs": self._engine.probe(str(params.get("version", "")), list(token_ids or ()))}


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The worker's command line."""
    parser = argparse.ArgumentParser(prog="python -m art.engine.worker", description="ART's engine process")
    parser.add_argument("--engine", choices=("torch", "scripted"), default="torch")
    parser.add_argument(
        "--base-model", required=True, help="folder with config.json, weights and tokenizer.json"
    )
    parser.add_argument("--max-batch", type=int, default=64, help="choices decoded at once")
    parser.add_argument(
        "--context",
        type=int,
        default=0,
        help="tokens a choice may hold; 0: what the model allows, at most 4096",
    )
    parser.add_argument("--dtype", choices=("auto", "fp32", "bf16"), default="auto")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's own choice")
    parser.add_argument("--prefix-cache", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--deterministic", action="store_true", help="tokens depend on the request and the weights alone"
    )
    parser.add_argument("--max-adapters", type=int, default=4, help="adapter versions kept loaded")
    parser.add_argument("--script", help="scripted engine: JSON file of rules")
    parser.add_argument("--log", help="scripted engine: JSONL file of tokens given and sampled")
    return parser.parse_args(argv)


def build_engine(options: argparse.Namespace) -> StepEngine:
    """The engine that the command line asks for. ArtError says why it cannot start."""
    if options.engine == "scripted":  # a function of script and request anyway
        from art.engine.scripted import ScriptedEngine

        return ScriptedEngine.load(
            options.base_model,
            script=options.script,
            log=options.log,
            max_batch=options.max_batch,
            context=options.context,
            max_adapters=options.max_adapters,
        )
    if options.script or options.log:
        raise ConfigError("--script and --log belong to the scripted engine", hint="add --engine scripted")
    try:
        from art.engine.torch.engine import TorchEngine
        from art.engine.torch.fixed import FixedEngine
    except ImportError as error:
        raise ConfigError(
            "the torch engine needs torch",
            cause=str(error),
            hint='pip install "agent-reinforcement-trainer[server]"',
        ) from error
    kind: type[TorchEngine] = FixedEngine if options.deterministic else TorchEngine
    return kind.load(
        options.base_model,
        max_batch=options.max_batch,
        context=options.context,
        dtype=options.dtype,
        threads=options.threads,
        prefix_cache=options.prefix_cache,
        max_adapters=options.max_adapters,
    )


def die_with_parent() -> None:
    """Ask Linux to end this process with the one that started it; elsewhere the channel's end does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker; the exit status is 0 when the gateway went, 1 when the engine failed."""
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    options = parse_arguments(argv)
    channel = WorkerChannel.inherited()
    # Loading takes seconds; the gateway must see that the process lives.
    stats: dict[str, Any] = {"running": 0, "waiting": 0}
    engine: StepEngine | None = None
    worker: Worker | None = None
    channel.start_heartbeat(
        lambda: engine.stats if engine is not None else stats,
        lambda: worker.requests if worker is not None else (),
    )
    try:
        engine = build_engine(options)
    except ArtError as error:
        channel.send({"failed": error.to_dict()})
        return 1
    except Exception as error:  # a boundary: the gateway is told why
        logger.exception("the engine could not start")
        failed = InfraError(
            "the engine could not start",
            cause=f"{type(error).__name__}: {error}",
            hint="see the engine's log in server/logs",
        )
        channel.send({"failed": failed.to_dict()})
        return 1
    channel.send({"ready": as_result(engine.capabilities)})
    try:
        worker = Worker(engine, channel)
        worker.run()
    except BrokenPipeError:
        return 0
    except Exception:  # noqa: BLE001 - logged and reported to every request where it happened
        return 1
    return 0


if __name__ == "__main__":
    # Not sys.exit: threads inside native code would keep a failed process alive.
    status = main()
    logging.shutdown()
    os._exit(status)
