"""The trainer's process: `python -m art.trainer.worker`, speaking `art.ipc` as trainer/protocol.py says.

Four threads beside the heartbeat: the main thread reads the channel, so that a cancellation is heard at
once; one thread trains, one request after another; one resolves base models, and one copies and deletes the
files of checkpoints, so that neither waits for a training step.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from art.errors import ArtError, ConfigError, InfraError, InvalidInput, TrainingFailed
from art.ipc import Message, WorkerChannel
from art.trainer.base_models import resolve_base_model
from art.trainer.protocol import PrepareModel, Progress, SftJob, TrainJob

if TYPE_CHECKING:
    from art.trainer.jobs import Trainer

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
"""Linux's prctl: the signal this process gets when the thread that started it ends."""

TRAINING = "train"
"""Before the name of the thread that trains."""

Handler = Callable[[dict[str, Any], Callable[[Progress], None]], dict[str, Any]]


class Worker:
    """Ties a Trainer to a channel."""

    def __init__(self, trainer: Trainer, channel: WorkerChannel, *, cache_dir: Path) -> None:
        self._trainer = trainer
        self._channel = channel
        self._cache_dir = cache_dir
        self._training = ThreadPoolExecutor(1, thread_name_prefix=TRAINING)
        self._resolving = ThreadPoolExecutor(1, thread_name_prefix="resolve")
        self._filing = ThreadPoolExecutor(1, thread_name_prefix="files")
        self._cancelled: dict[int, threading.Event] = {}
        self._stats: dict[str, Any] = {"running": 0, "phase": "", "jobs": 0}
        self._methods: dict[str, tuple[ThreadPoolExecutor, Handler]] = {
            "resolve_base_model": (self._resolving, self._resolve),
            "prepare_model": (self._training, self._prepare),
            "train": (self._training, self._train),
            "train_sft": (self._training, self._train_sft),
            "delete_checkpoint": (self._filing, self._delete),
        }

    def stats(self) -> dict[str, Any]:
        """For the heartbeat."""
        return self._stats

    def requests(self) -> list[int]:
        """Taken and not answered, for the heartbeat."""
        return list(self._cancelled)

    def run(self) -> None:
        """Serve until the gateway goes. Checkpoints appear whole or not at all, so nothing needs finishing."""
        while (messages := self._channel.receive()) is not None:
            for message in messages:
                self._accept(message)

    def _accept(self, message: Message) -> None:
        key = int(message["id"])
        if message.get("cancel"):
            if (event := self._cancelled.get(key)) is not None:
                event.set()
            return
        method = str(message.get("method"))
        if method not in self._methods:
            unknown = InvalidInput(f"unknown method {method!r}", hint=f"known: {', '.join(self._methods)}")
            self._channel.send({"id": key, "error": unknown.to_dict()})
            return
        executor, handler = self._methods[method]
        params = dict(message.get("params") or {})
        if handler == self._prepare and params.get("fork_of"):
            executor = self._filing  # a fork is a copy: it needs no policy
        self._cancelled[key] = threading.Event()
        executor.submit(self._serve, key, handler, params)

    def _serve(self, key: int, handler: Handler, params: dict[str, Any]) -> None:
        """Run one request and answer it, whatever happens."""
        cancelled = self._cancelled[key]

        def on_progress(progress: Progress) -> None:
            if cancelled.is_set():
                raise TrainingFailed("The request was cancelled", hint="nothing was published")
            self._stats = self._stats | {"running": 1, "phase": progress.phase}
            self._channel.send({"id": key, "event": progress.model_dump()})

        try:
            if cancelled.is_set():  # while it waited for the one before it
                raise TrainingFailed("The request was cancelled", hint="nothing was published")
            answer: Message = {"id": key, "result": handler(params, on_progress)}
        except ArtError as error:
            answer = {"id": key, "error": error.to_dict()}
        except ValidationError as error:
            invalid = InvalidInput(
                "the request does not fit the protocol",
                cause=str(error),
                hint="server and trainer must be of one release; restart the server",
            )
            answer = {"id": key, "error": invalid.to_dict()}
        except BrokenPipeError:
            self._cancelled.pop(key, None)
            return
        except Exception as error:  # a boundary: the gateway is told, and the next request is served
            log.exception("request %d failed", key)
            failed = InfraError(
                "the trainer failed",
                cause=f"{type(error).__name__}: {error}",
                hint="see server/logs/trainer.log; nothing was published",
            )
            answer = {"id": key, "error": failed.to_dict()}
        finally:
            if threading.current_thread().name.startswith(TRAINING):  # the others run beside it
                self._stats = self._stats | {"running": 0, "phase": "", "jobs": self._stats["jobs"] + 1}
        try:
            if self._channel.send(answer):
                log.error("the answer to request %d could not be sent: an error was sent instead", key)
        except OSError:
            log.info("the gateway went before request %d was answered", key)
        finally:
            self._cancelled.pop(key, None)

    def _resolve(self, params: dict[str, Any], on_progress: Callable[[Progress], None]) -> dict[str, Any]:
        name, quantization = str(params.get("name", "")), params.get("quantization")
        return dump(resolve_base_model(name, cache_dir=self._cache_dir, quantization=quantization))

    def _prepare(self, params: dict[str, Any], on_progress: Callable[[Progress], None]) -> dict[str, Any]:
        return dump(self._trainer.prepare_model(PrepareModel.model_validate(params)))

    def _train(self, params: dict[str, Any], on_progress: Callable[[Progress], None]) -> dict[str, Any]:
        return dump(self._trainer.train(TrainJob.model_validate(params), on_progress=on_progress))

    def _train_sft(self, params: dict[str, Any], on_progress: Callable[[Progress], None]) -> dict[str, Any]:
        from art.trainer.sft import train_sft

        return dump(train_sft(self._trainer, SftJob.model_validate(params), on_progress=on_progress))

    def _delete(self, params: dict[str, Any], on_progress: Callable[[Progress], None]) -> dict[str, Any]:
        from art.trainer.checkpoint import delete_checkpoint

        delete_checkpoint(Path(str(params.get("path", ""))))
        return {}


def dump(model: BaseModel) -> dict[str, Any]:
    """A result as JSON types."""
    return model.model_dump(mode="json")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The worker's command line."""
    parser = argparse.ArgumentParser(prog="python -m art.trainer.worker", description="ART's trainer process")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's own choice")
    parser.add_argument("--cache-dir", type=Path, required=True, help="folder for converted base models")
    parser.add_argument(
        "--deterministic", action="store_true", help="refuse operations that do not repeat themselves"
    )
    parser.add_argument("--dtype", choices=("auto", "fp32", "bf16"), default="auto")
    return parser.parse_args(argv)


def build_trainer(options: argparse.Namespace) -> Trainer:
    """Import torch and set it up; ArtError says why it cannot."""
    import torch
    import transformers

    from art.trainer.jobs import Trainer

    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    if options.deterministic:
        if torch.cuda.is_available():
            raise ConfigError(
                "a deterministic trainer runs on the CPU",
                cause="this machine has a GPU, whose kernels were not shown to repeat themselves bit by bit",
                hint="hide it (CUDA_VISIBLE_DEVICES=), or leave --deterministic out",
            )
        # An operation that does not repeat itself raises; fresh memory need not be filled, since none is read.
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return Trainer(dtype=options.dtype, limit_memory=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker; the exit status is 0 when the gateway went, 1 when the trainer could not start."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    options = parse_arguments(argv)
    channel = WorkerChannel.inherited()
    worker: Worker | None = None
    # Importing torch takes seconds; the gateway must see that the process lives.
    channel.start_heartbeat(
        lambda: worker.stats() if worker is not None else {"running": 0},
        lambda: worker.requests() if worker is not None else (),
    )
    try:
        trainer = build_trainer(options)
    except ArtError as error:
        channel.send({"failed": error.to_dict()})
        return 1
    except Exception as error:  # a boundary: the gateway is told why
        log.exception("the trainer could not start")
        failed = InfraError(
            "the trainer could not start",
            cause=f"{type(error).__name__}: {error}",
            hint='pip install "agent-reinforcement-trainer[server]"',
        )
        channel.send({"failed": failed.to_dict()})
        return 1
    worker = Worker(trainer, channel, cache_dir=options.cache_dir)
    channel.send({"ready": {"kind": "torch", "notes": trainer.notes}})
    worker.run()
    return 0


if __name__ == "__main__":
    # Not sys.exit: a training thread would keep the process alive.
    status = main()
    logging.shutdown()
    os._exit(status)
