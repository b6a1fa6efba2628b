"""What people look at is read beside the writer: with a deadline, a bound, and no way to change anything."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from art.errors import DeadlineExceeded, InfraError, Overloaded
from art.store import readers
from art.store.records import AuditRow
from art.store.store import Store

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"


def endless(conn: sqlite3.Connection) -> Any:
    return conn.execute(ENDLESS).fetchone()


def test_a_slow_query_ends_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open(tmp_path)
        try:
            slow = [asyncio.create_task(store._db._readers.read(endless, seconds=1.5)) for _ in range(2)]
            await asyncio.sleep(0.1)
            async with asyncio.timeout(1.0):  # both threads are busy: the store's own are not
                await store.add_audit(AuditRow(key_id=None, action="a", target="t"))
                assert len(await store.list_audit()) == 1
            for error in await asyncio.gather(*slow, return_exceptions=True):
                assert isinstance(error, DeadlineExceeded)
            (count,) = await store.view(lambda conn: conn.execute("SELECT COUNT(*) FROM audit").fetchone())
            assert count == 1
        finally:
            await store.close()

    asyncio.run(main())


def test_one_long_instruction_keeps_nobody_past_the_deadline(tmp_path: Path) -> None:
    """SQLite looks at no clock within it; the answer does not wait for it."""
    going_on, ended = threading.Event(), threading.Event()

    def long(conn: sqlite3.Connection) -> Any:
        def one() -> int:
            going_on.set()
            return int(ended.wait(30))

        conn.create_function("long", 0, one)
        return conn.execute("SELECT long()").fetchone()

    async def main() -> None:
        store = await Store.open(tmp_path)
        try:
            with pytest.raises(DeadlineExceeded):
                await store._db._readers.read(long, seconds=0.2)
            assert going_on.is_set()
            assert not ended.is_set()
            (found,) = await store.view(lambda conn: conn.execute("SELECT 7").fetchone())
            assert found == 7
        finally:
            ended.set()
            await store.close()

    asyncio.run(main())


def test_who_goes_away_stops_the_query(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open(tmp_path)
        try:
            gone = [asyncio.create_task(store.view(endless)) for _ in range(readers.THREADS)]
            await asyncio.sleep(0.2)
            for task in gone:
                task.cancel()
            async with asyncio.timeout(5):
                assert (await store.view(lambda conn: conn.execute("SELECT 7").fetchone()))[0] == 7
        finally:
            await store.close()

    asyncio.run(main())


def test_it_is_bounded_and_refuses_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_WAITING", 3)

    async def main() -> None:
        store = await Store.open(tmp_path)
        with pytest.raises(InfraError, match="readonly"):
            await store.view(lambda conn: conn.execute("DELETE FROM audit"))
        with pytest.raises(ZeroDivisionError):
            await store.view(lambda conn: 1 / 0)
        waiting = [asyncio.create_task(store.view(endless)) for _ in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded):
            await store.view(endless)
        async with asyncio.timeout(10):
            await store.close()  # ends what runs
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, BaseException) for error in ended)
        with pytest.raises(InfraError):
            await store.view(endless)

    asyncio.run(main())


def test_a_query_sees_one_state(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open(tmp_path)
        loop = asyncio.get_running_loop()

        def twice(conn: sqlite3.Connection) -> tuple[int, int]:
            def count() -> int:
                return int(conn.execute("SELECT COUNT(*) FROM audit").fetchone()[0])

            first = count()
            row = AuditRow(key_id=None, action="a", target="t")
            asyncio.run_coroutine_threadsafe(store.add_audit(row), loop).result(10)
            return first, count()

        try:
            assert await store.view(twice) == (0, 0)
            assert await store.view(twice) == (1, 1)
        finally:
            await store.close()

    asyncio.run(main())
