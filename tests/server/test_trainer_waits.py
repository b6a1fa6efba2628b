"""What waits for a training step, and what does not: the worker's threads, and what is said about a long wait."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art.config.server import ServerConfig
from art.config.train import ResolvedTrainConfig, TrainConfig, chosen_by_size
from art.errors import DeadlineExceeded
from art.server.trainers import WorkerTrainer
from art.trainer.checkpoint import remove_folder
from art.trainer.protocol import CheckpointInfo, PrepareModel, Progress, TrainJob, TrainOutcome
from art.trainer.worker import Worker
from art.types.jobs import ResolvedBaseModel

BASE = ResolvedBaseModel(name="b", path="/b", sha256="x", parameters=10, context_length=64, source="folder")
SECONDS = 30.0  # no answer of this file takes longer


def train_job() -> TrainJob:
    chosen = chosen_by_size(TrainConfig(), BASE.parameters, whole=False)
    config = ResolvedTrainConfig(**{**TrainConfig().model_dump(), **chosen})
    return TrainJob(
        job_id="j", project="p", name="m", batch=1, base=BASE, model_dir="/m", blob_dir="/blobs", parent_step=0,
        step=1, lora={"r": 8}, config=config, groups=[],
    )  # fmt: skip


def prepare(**more: Any) -> PrepareModel:
    return PrepareModel(project="p", name="new", base=BASE, model_dir="/new", **more)


class HeldTrainer:
    """A trainer whose step lasts until it is released."""

    def __init__(self) -> None:
        self.training, self.release = threading.Event(), threading.Event()

    def train(self, job: TrainJob, *, on_progress: Callable[[Progress], None]) -> TrainOutcome:
        self.training.set()
        assert self.release.wait(SECONDS)
        return TrainOutcome(step=job.step, published=False)

    def prepare_model(self, request: PrepareModel) -> CheckpointInfo:
        return CheckpointInfo(project=request.project, name=request.name, step=0, path="/new/0000")


class Wire:
    """A worker's channel: what it is asked, and what it answers."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[list[dict[str, Any]] | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def receive(self) -> list[dict[str, Any]] | None:
        return self.asked.get(timeout=SECONDS)

    def send(self, message: dict[str, Any]) -> bool:
        self.answers.put(message)
        return False

    def ask(self, key: int, method: str, params: dict[str, Any]) -> None:
        self.asked.put([{"id": key, "method": method, "params": params}])


def test_deletions_and_forks_do_not_wait_for_the_step_that_is_trained(tmp_path: Path) -> None:
    doomed = tmp_path / "checkpoints" / "0001"
    doomed.mkdir(parents=True)
    (doomed / "manifest.json").write_text("{}")
    trainer, wire = HeldTrainer(), Wire()
    worker = Worker(trainer, wire, cache_dir=tmp_path)  # type: ignore[arg-type]
    serving = threading.Thread(target=worker.run, daemon=True)
    serving.start()
    try:
        wire.ask(1, "train", train_job().model_dump(mode="json"))
        assert trainer.training.wait(SECONDS)
        wire.ask(2, "prepare_model", prepare().model_dump(mode="json"))  # fresh: it needs the policy
        wire.ask(3, "delete_checkpoint", {"path": str(doomed)})
        wire.ask(4, "prepare_model", prepare(fork_of="/m/checkpoints/0001").model_dump(mode="json"))
        wire.ask(5, "prepare_model", prepare().model_dump(mode="json"))
        wire.asked.put([{"id": 5, "cancel": True}])
        assert [wire.answers.get(timeout=SECONDS)["id"] for _ in range(2)] == [3, 4]
        assert not doomed.exists()
        trainer.release.set()
        first, second, third = [wire.answers.get(timeout=SECONDS) for _ in range(3)]
        assert [first["id"], second["id"]] == [1, 2]
        assert "cancelled" in third["error"]["message"], "what was cancelled while it waited does not start"
    finally:
        trainer.release.set()
        wire.asked.put(None)
        serving.join(SECONDS)


def test_removing_a_folder_that_another_thread_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".tmp-deleted-0001"
    folder.mkdir()
    for name in "abc":
        (folder / name).touch()
    unlink = remove_folder.__globals__["os"].unlink

    def raced(path: Any, **options: Any) -> None:
        unlink(path, **options)
        raise FileNotFoundError(path)

    monkeypatch.setattr("os.unlink", raced)
    remove_folder(folder)
    assert not folder.exists()


def test_a_registration_that_waited_too_long_says_for_what(tmp_path: Path) -> None:
    async def main() -> None:
        trainer = WorkerTrainer(ServerConfig(path=tmp_path), tmp_path)
        training, release = asyncio.Event(), asyncio.Event()

        async def call(method: str, params: Any, **options: Any) -> dict[str, Any]:
            if method == "prepare_model":
                raise DeadlineExceeded(f"the trainer did not answer {method!r}")
            training.set()
            await release.wait()
            return TrainOutcome(step=0, published=False).model_dump(mode="json")

        async def channel() -> Any:
            return SimpleNamespace(call=call)

        trainer.worker = SimpleNamespace(channel=channel)  # type: ignore[assignment]
        step = asyncio.create_task(trainer.train(train_job(), lambda progress: None))
        await training.wait()
        with pytest.raises(DeadlineExceeded, match="p/new could not be made ready") as caught:
            await trainer.prepare_model(prepare())
        assert caught.value.cause.startswith("the trainer is training p/m, ")
        release.set()
        await step
        with pytest.raises(DeadlineExceeded, match="did not answer"):
            await trainer.prepare_model(prepare())

    asyncio.run(main())
