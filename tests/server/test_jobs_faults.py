"""The job queue against parts that fail in every way: a trainer and versions that do as they are told, a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art.config.model import ModelConfig
from art.config.server import ServerConfig
from art.config.train import TrainConfig
from art.errors import ArtError, InfraError, TrainingFailed, WorkerDied
from art.server.jobs import MAX_ATTEMPTS, PUBLISH_ATTEMPTS, Jobs
from art.server.recovery import INTERRUPTED, recover
from art.store.records import JobSpec, ModelRow, Outcomes, RolloutRow, SelectedTrajectory
from art.store.store import Store
from art.trainer.protocol import SET_ASIDE, Progress, TrainJob, TrainOutcome
from art.types.jobs import CheckpointInfo, ResolvedBaseModel, RolloutOutcome, TrainGroup
from art.types.policy import RolloutStatus
from art.types.wire import JobInfo

BASE = ResolvedBaseModel(name="b", path="/b", sha256="x", parameters=10, context_length=64, source="folder")


def info(step: int) -> CheckpointInfo:
    return CheckpointInfo(project="p", name="m", step=step, path=f"/c/{step:04d}", sha256=str(step))


class ScriptedTrainer:
    """Fails with the errors it was given, one a call, then trains."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.jobs: list[TrainJob] = []
        self.deleted: list[str] = []
        self.called = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()

    async def train(self, job: TrainJob, on_progress: Callable[[Progress], None]) -> TrainOutcome:
        self.jobs.append(job)
        self.called.set()
        on_progress(Progress(phase="forward", done=1, total=2))
        await self.hold.wait()
        if self.errors:
            raise self.errors.pop(0)
        rollouts = [
            RolloutOutcome(rollout_id=item.rollout_id, group_id=group.group_id, status=RolloutStatus.TRAINED)
            for group in job.groups
            for item in group.trajectories
        ]
        return TrainOutcome(step=job.step, published=True, checkpoint=info(job.step), rollouts=rollouts)

    async def delete_checkpoint(self, path: str) -> None:
        self.deleted.append(path)


class ScriptedVersions:
    """Publishes into the store, after the errors it was given."""

    def __init__(self, store: Store, row: ModelRow, *errors: ArtError) -> None:
        self._store = store
        self.errors = list(errors)
        self.model = SimpleNamespace(
            row=row, step=0, key=("p", "m"), wire_name="p/m", leased=set, version=lambda step: f"p/m@{step}"
        )

    def entry(self, project: str, name: str) -> Any:
        return self.model

    async def publish(self, entry: Any, checkpoint: CheckpointInfo, **options: Any) -> None:
        if self.errors:
            raise self.errors.pop(0)
        await self._store.put_checkpoint(checkpoint, options["metrics"], options["job_id"])
        entry.step = checkpoint.step

    async def forget(self, entry: Any, step: int) -> None:
        return None


class Kit:
    """A store with one model, and a queue over it."""

    def __init__(self, store: Store, trainer: ScriptedTrainer, versions: ScriptedVersions) -> None:
        self.store = store
        self.trainer = trainer
        self.versions = versions
        self.jobs = Jobs(ServerConfig(), store.root.parent, store=store, trainer=trainer, versions=versions)  # type: ignore[arg-type]

    @classmethod
    async def make(cls, root: Path, *errors: BaseException, publish: tuple[ArtError, ...] = ()) -> Kit:
        store = await Store.open(root / "server")
        row = ModelRow(
            project="p", name="m", config=ModelConfig(base_model="b"), base=BASE, model_dir=str(root / "m")
        )
        row = await store.put_model(row)
        await store.put_checkpoint(info(0))
        return cls(store, ScriptedTrainer(*errors), ScriptedVersions(store, row, *publish))

    async def submit(self) -> JobInfo:
        row = await self.store.get_model("p", "m")
        assert row is not None
        spec = JobSpec(
            config=TrainConfig(),
            groups=[TrainGroup(group_id="0", trajectories=[])],
            trajectories=[SelectedTrajectory(group=0, index=0, label="r1", rollout_ids=["r1"])],
        )
        return await self.jobs.submit(row, spec, rewards=[])

    async def ended(self, job_id: str) -> JobInfo:
        async for event in self.jobs.events(job_id, 0):
            if event is not None and event.type in ("succeeded", "failed", "cancelled"):
                break
        return (await self.store.get_job(job_id)).info

    async def close(self) -> None:
        await self.jobs.stop()
        await self.store.close()


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


def died() -> WorkerDied:
    return WorkerDied("the trainer process ended", cause="SIGKILL")


def test_a_trainer_that_died_once_is_asked_again_for_the_same_step(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path, died())
        await kit.jobs.start()
        job = await kit.ended((await kit.submit()).job_id)
        assert (job.status, job.attempts) == ("succeeded", 2)
        first, second = kit.trainer.jobs
        assert first == second, "same job, same place, same tokens"
        kinds = [event.type for event in await kit.store.events_after(job.job_id, 0)]
        assert [kind for kind in kinds if kind != "progress"] == [
            "queued",
            "started",
            "restarted",
            "succeeded",
        ]
        await kit.close()

    run(main)


def test_attempts_are_bounded_and_the_queue_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path, *(died() for _ in range(MAX_ATTEMPTS)))
        await kit.jobs.start()
        first, second = await kit.submit(), await kit.submit()
        job = await kit.ended(first.job_id)
        assert (job.status, job.attempts) == ("failed", MAX_ATTEMPTS)
        assert job.error is not None
        assert job.error["code"] == "worker_died"
        job = await kit.ended(second.job_id)
        assert job.status == "succeeded"
        assert job.result is not None
        assert (job.result.step, job.result.batch) == (1, 1), "the failed batch left no gap"
        await kit.close()

    run(main)


@pytest.mark.parametrize("error", [TrainingFailed("the loss is not finite"), RuntimeError("a bug")])
def test_a_failure_is_told_and_not_repeated(tmp_path: Path, error: Exception) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path, error)
        await kit.jobs.start()
        job = await kit.ended((await kit.submit()).job_id)
        assert (job.status, job.attempts) == ("failed", 1)
        assert job.error is not None
        assert str(error) in job.error["message"] + job.error["cause"]
        model = await kit.store.get_model("p", "m")
        assert model is not None
        assert (model.step, model.batch) == (0, 0)
        assert (await kit.ended((await kit.submit()).job_id)).status == "succeeded"
        await kit.close()

    run(main)


def test_a_step_that_the_engine_refuses_is_deleted_and_never_the_latest(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path, publish=(InfraError("the adapter does not fit"),))
        await kit.jobs.start()
        job = await kit.ended((await kit.submit()).job_id)
        assert job.status == "failed"
        assert job.error is not None
        assert job.error["hint"] == "the previous step stays the latest"
        assert kit.trainer.deleted == ["/c/0001"]
        model = await kit.store.get_model("p", "m")
        assert model is not None
        assert model.step == 0
        again = await kit.ended((await kit.submit()).job_id)
        assert again.result is not None
        assert again.result.step == 1
        await kit.close()

    run(main)


@pytest.mark.parametrize(("deaths", "status"), [(1, "succeeded"), (PUBLISH_ATTEMPTS, "failed")])
def test_an_engine_that_dies_while_it_loads_gets_another_chance(
    tmp_path: Path, deaths: int, status: str
) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path, publish=tuple(died() for _ in range(deaths)))
        await kit.jobs.start()
        job = await kit.ended((await kit.submit()).job_id)
        assert job.status == status
        assert kit.trainer.deleted == ([] if status == "succeeded" else ["/c/0001"])
        assert len(kit.trainer.jobs) == 1, "what was trained is not trained again"
        await kit.close()

    run(main)


def test_an_abandoned_job_is_taken_up_at_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path)
        kit.trainer.hold.clear()
        await kit.jobs.start()
        running, waiting = await kit.submit(), await kit.submit()
        await kit.trainer.called.wait()
        kit.jobs.abandon()
        await kit.close()

        kit = await Kit.make(tmp_path)
        await recover(kit.store)
        assert [job.info.status for job in await kit.store.open_jobs()] == ["running", "queued"]
        await kit.jobs.start()
        for number, job in enumerate((running, waiting), start=1):
            done = await kit.ended(job.job_id)
            assert done.status == "succeeded"
            assert done.result is not None
            assert (done.result.step, done.result.batch) == (number, number)
        assert [job.job_id for job in kit.trainer.jobs] == [running.job_id, waiting.job_id]
        await kit.close()

    run(main)


def test_a_wish_to_cancel_survives_the_server(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path)
        job = await kit.submit()
        await kit.store.start_job(job.job_id)
        await kit.store.cancel_job(job.job_id)
        await kit.jobs.start()
        assert (await kit.ended(job.job_id)).status == "cancelled"
        assert kit.trainer.jobs == []
        await kit.close()

    run(main)


def test_recovery_settles_what_was_in_flight(tmp_path: Path) -> None:
    """Temporary folders go; a finished step of an open job stays; one that nobody knows is set aside, not lost."""

    def checkpoint(name: str, job_id: str = "j") -> Path:
        folder = tmp_path / "m" / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(f'{{"job_id": "{job_id}"}}')
        return folder

    async def main() -> None:
        kit = await Kit.make(tmp_path)
        job = await kit.submit()
        await kit.store.open_rollout(RolloutRow(rollout_id="r1", project="p", model="m", step=0))
        kept = [checkpoint("0000"), checkpoint("0001", job.job_id)]
        await kit.store.add_history(
            project="p", name="m", step=0, recorded_at="t", data={"val/reward": 0.5},
            trajectories=[], outcomes=Outcomes(),
        )  # fmt: skip
        temporary, orphan = checkpoint(".tmp-0001-77"), checkpoint("0002", "job_of_nobody")
        await recover(kit.store)
        assert all(folder.is_dir() for folder in kept)
        assert not temporary.exists()
        assert not orphan.exists()
        (aside,) = (tmp_path / "m" / SET_ASIDE).iterdir()
        assert (aside / "manifest.json").read_text() == '{"job_id": "job_of_nobody"}'
        assert (tmp_path / "m" / "history.jsonl").read_text() == '{"val/reward": 0.5}\n', (
            "the store had it alone"
        )
        row = await kit.store.get_rollout("r1")
        assert (row.status, row.reason) == (RolloutStatus.INFRA_ERROR, INTERRUPTED)
        await kit.close()

    run(main)
