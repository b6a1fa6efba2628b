"""A store whose disk, neighbours or threads fail: the error says what to do, what was written stands, and it goes on."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from test_store import arrays, call, job_row, opened, rollout, run

from art.errors import InfraError
from art.store import database
from art.store.records import CallText, RewardChange
from art.store.store import DATABASE


def test_a_full_database_can_be_read_and_is_written_again_when_there_is_room(tmp_path: Path) -> None:
    """Also where SQLite rolls the whole transaction back by itself: every write of the group is told the true reason."""

    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.open_rollout(rollout())
            (pages,) = await store._db.write(lambda conn: conn.execute("PRAGMA page_count").fetchone())
            await store._db.write(lambda conn: conn.execute(f"PRAGMA max_page_count = {pages}"))
            big = CallText(completions=[{"content": "x" * 200_000}])
            writes = [store.add_call(call(f"c{n}", number=n), arrays=arrays(1), text=big) for n in range(3)]
            failed = await asyncio.gather(*writes, return_exceptions=True)
            for error in failed:
                assert isinstance(error, InfraError)
                assert error.message == "the disk of the store is full"
                assert "make room" in error.hint
            assert (await store.get_rollout("r1")).rollout_id == "r1"
            assert await store.calls_of("r1") == []
            await store._db.write(lambda conn: conn.execute("PRAGMA max_page_count = 1000000"))
            await store.add_call(call(), arrays=arrays(1), text=big)
            assert len(await store.calls_of("r1")) == 1

    run(main)


def test_token_files_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, values: dict[str, np.ndarray], *, sealed: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.open_rollout(rollout())
            with monkeypatch.context() as patched:
                patched.setattr(store.blobs, "append", refuse)
                for write in (
                    store.add_call(call(), arrays=arrays(1), text=CallText()),
                    store.add_job_arrays("p/job.blob", arrays(1)),
                ):
                    with pytest.raises(InfraError, match="disk of the store is full"):
                        await write
            await store.add_call(call(), arrays=arrays(1), text=CallText())

    run(main)


def test_a_store_that_another_process_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.1)

    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.open_rollout(rollout())
            other = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(InfraError, match="locked by another process"):
                await store.set_reward(RewardChange(rollout_id="r1", reward=1.0))
            assert (await store.get_rollout("r1")).reward is None
            other.close()
            assert (await store.set_reward(RewardChange(rollout_id="r1", reward=1.0))).reward == 1.0

    run(main)


def test_whoever_waits_hears_of_a_thread_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who asks later is told at once, instead of after the deadline."""

    async def main() -> None:
        async with opened(tmp_path) as store:

            def broken(conn: object, tasks: object) -> None:
                raise MemoryError("no memory for the group")

            monkeypatch.setattr(store._db, "_run_group", broken)
            with pytest.raises(InfraError, match="the store has stopped") as first:
                await asyncio.gather(*(store.open_rollout(rollout(f"r{n}")) for n in range(20)))
            assert "no memory for the group" in first.value.cause
            with pytest.raises(InfraError, match="the store has stopped"):
                await store.open_rollout(rollout())

    run(main)


def test_jobs_are_taken_up_in_the_order_they_came_in_whatever_the_clock_did(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            for number, created in enumerate((1000.0, 10.0, 500.0)):
                job = job_row(f"j{number}")
                job.info.created_at = created
                await store.submit_job(job)
            assert [job.info.job_id for job in await store.open_jobs()] == ["j0", "j1", "j2"]

    run(main)
