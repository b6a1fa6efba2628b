"""Jobs whose end cannot be written, that were left behind, or that lost their server: each ends once, in its own place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_jobs_faults import Kit, died, info, run

from art.errors import InfraError, TrainingFailed
from art.server import persist
from art.server.jobs import MAX_ATTEMPTS
from art.server.recovery import recover
from art.store.records import JobRow
from art.trainer.protocol import Progress, TrainJob, TrainOutcome


class FullDisk:
    """While `full`, the named writes of a store fail as they do without room on the disk."""

    def __init__(self, kit: Kit, *names: str) -> None:
        self.full = True
        self.refused = asyncio.Semaphore(0)
        for name in names:
            setattr(kit.store, name, self._wrap(getattr(kit.store, name)))

    def _wrap(self, write: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(*args: Any, **options: Any) -> Any:
            if self.full:
                self.refused.release()
                raise InfraError("the store could not write", cause="database or disk is full")
            return await write(*args, **options)

        return wrapped


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persist, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(persist, "LONGEST_PAUSE", 0.02)


@pytest.mark.parametrize("write", ["start_job", "complete_job", "fail_job"])
def test_what_the_store_refuses_is_written_before_the_next_job_is_taken(tmp_path: Path, write: str) -> None:
    failing = write == "fail_job"

    async def main() -> None:
        kit = await Kit.make(tmp_path, *[TrainingFailed("the loss is not finite")] * failing)
        disk = FullDisk(kit, write)
        await kit.jobs.start()
        first, second = await kit.submit(), await kit.submit()
        for _ in range(3):
            await disk.refused.acquire()
        assert {job.job_id for job in kit.trainer.jobs} <= {first.job_id}
        assert len(await kit.store.open_jobs()) == 2
        disk.full = False
        ended = await kit.ended(first.job_id)
        assert ended.status == ("failed" if failing else "succeeded")
        last = await kit.ended(second.job_id)
        assert last.result is not None
        assert last.result.batch == (1 if failing else 2)
        await kit.close()

    run(main)


@pytest.mark.parametrize("write", ["complete_job", "fail_job"])
def test_an_end_that_could_not_be_written_is_left_for_the_next_start(tmp_path: Path, write: str) -> None:
    async def main() -> None:
        failing = [TrainingFailed("the loss is not finite")] if write == "fail_job" else []
        kit = await Kit.make(tmp_path, *failing)
        disk = FullDisk(kit, write)
        await kit.jobs.start()
        first, second = await kit.submit(), await kit.submit()
        await disk.refused.acquire()
        await kit.close()

        kit = await Kit.make(tmp_path)
        assert [job.info.status for job in await kit.store.open_jobs()] == ["running", "queued"]
        await kit.jobs.start()
        for number, job in enumerate((first, second), start=1):
            done = await kit.ended(job.job_id)
            assert done.result is not None
            assert done.result.batch == number
        assert [job.job_id for job in kit.trainer.jobs] == [first.job_id, second.job_id]
        assert kit.trainer.jobs[0].parent_step == 0, (
            "from its own parent, whether or not its step is recorded"
        )
        await kit.close()

    run(main)


def test_a_job_that_nobody_runs_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path)
        job = await kit.submit()
        await kit.store.start_job(job.job_id)
        assert (await kit.jobs.cancel(job.job_id)).status == "cancelled"
        await kit.jobs.start()
        assert (await kit.ended((await kit.submit()).job_id)).status == "succeeded"
        assert len(kit.trainer.jobs) == 1, "what was cancelled is not trained"
        await kit.close()

    run(main)


def test_cancelling_twice_a_step_that_is_being_published_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path)
        publish, reached, hold = kit.versions.publish, asyncio.Event(), asyncio.Event()
        cancel_job, wished = kit.store.cancel_job, asyncio.Semaphore(0)

        async def wish(job_id: str) -> JobRow:
            job = await cancel_job(job_id)
            wished.release()
            return job

        async def held(*args: Any, **options: Any) -> None:
            reached.set()
            await hold.wait()
            await publish(*args, **options)

        kit.versions.publish = held  # type: ignore[method-assign]
        kit.store.cancel_job = wish  # type: ignore[method-assign]
        await kit.jobs.start()
        job = await kit.submit()
        await reached.wait()
        cancellations = [asyncio.create_task(kit.jobs.cancel(job.job_id)) for _ in range(3)]
        for _ in cancellations:
            await wished.acquire()
        await asyncio.sleep(0.05)  # until each has reached the task
        hold.set()
        assert {done.status for done in await asyncio.gather(*cancellations)} == {"succeeded"}
        await kit.close()

    run(main)


def test_a_progress_line_that_is_refused_costs_no_step(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path)
        disk = FullDisk(kit, "add_event", "count_attempt")
        kit.trainer.hold.clear()
        await kit.jobs.start()
        submitted = await kit.submit()
        await disk.refused.acquire()
        await disk.refused.acquire()
        kit.trainer.hold.set()
        job = await kit.ended(submitted.job_id)
        assert (job.status, job.error) == ("succeeded", None)
        await kit.close()

    run(main)


def test_only_what_the_trainer_took_up_counts_as_an_attempt(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path)
        job = await kit.submit()
        for _ in range(MAX_ATTEMPTS):  # servers that were killed before the trainer was up
            await kit.store.start_job(job.job_id)
        await kit.jobs.start()
        done = await kit.ended(job.job_id)
        assert (done.status, done.attempts) == ("succeeded", 1)
        await kit.close()

    run(main)


@pytest.mark.parametrize("finished", [True, False])
def test_a_finished_step_is_looked_for_before_the_job_is_given_up(tmp_path: Path, finished: bool) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path)
        job = await kit.submit()
        for _ in range(MAX_ATTEMPTS):
            await kit.store.start_job(job.job_id)
            await kit.store.count_attempt(job.job_id)
        if finished:
            folder = tmp_path / "m" / "checkpoints" / "0001"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text(f'{{"job_id": "{job.job_id}"}}')
        await kit.jobs.start()
        done = await kit.ended(job.job_id)
        assert done.status == ("succeeded" if finished else "failed")
        assert len(kit.trainer.jobs) == finished
        await kit.close()

    run(main)


def test_a_trainer_that_never_takes_the_job_up_is_not_asked_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path)
        asked = []

        async def train(job: TrainJob, on_progress: Callable[[Progress], None]) -> TrainOutcome:
            asked.append(job.job_id)
            raise died()

        kit.trainer.train = train  # type: ignore[method-assign]
        await kit.jobs.start()
        done = await kit.ended((await kit.submit()).job_id)
        assert (done.status, done.attempts, len(asked)) == ("failed", 0, MAX_ATTEMPTS)
        await kit.close()

    run(main)


def test_files_of_a_deleted_step_go_at_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        kit = await Kit.make(tmp_path)
        for step in (1, 2):
            await kit.store.put_checkpoint(info(step))
            (tmp_path / "m" / "checkpoints" / f"{step:04d}").mkdir(parents=True)
        await kit.store.remove_checkpoint("p", "m", 1)
        await recover(kit.store)
        assert [folder.name for folder in (tmp_path / "m" / "checkpoints").iterdir()] == ["0002"]
        await kit.close()

    run(main)
