"""Who gets what of a bound, and whose turn is next."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art.errors import Conflict, InfraError, Overloaded
from art.server import session
from art.server.admission import Admission, Ticket
from art.server.slots import AdapterSlots
from art.server.turns import Turns, places_for
from art.store import job_changes
from art.store.records import IdempotencyRow, JobRow, JobSpec
from art.store.store import Store
from art.types.wire import JobInfo


def fill(admission: Admission, sharer: str) -> list[Ticket]:
    """All that one sharer gets."""
    held = []
    try:
        while True:
            held.append(admission.take(sharer))
    except Overloaded:
        return held


def test_one_who_asks_alone_gets_nearly_all_and_the_next_one_still_gets_in() -> None:
    admission = Admission(1024)
    held = fill(admission, "a")
    assert len(held) == 911  # eight ninths of 1,024
    with pytest.raises(Overloaded, match="all of one project"):
        admission.take("a")
    held += fill(admission, "b")
    assert admission.inside < 1024
    admission.take("c").close()
    for ticket in held:
        ticket.close()
    assert admission.inside == 0


def test_a_ticket_grows_moves_and_is_given_back_once() -> None:
    admission = Admission(100)
    ticket = admission.take("a", 40)
    ticket.grow(10)
    with pytest.raises(Overloaded):
        ticket.grow(51)
    moved = ticket.moved()
    ticket.close()
    assert admission.inside == 50
    moved.close()
    moved.close()
    assert admission.inside == 0
    # What is larger than the bound is taken when nothing else is held.
    with admission.enter("a", 1000), pytest.raises(Overloaded):
        admission.take("b", 1)


async def order_of(turns: Turns, asked: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The order in which waiting ones get a single place."""
    served: list[tuple[str, str]] = []

    async def one(project: str, session: str) -> None:
        async with turns.take(project, session):
            served.append((project, session))
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(one(*who)) for who in asked]
    await asyncio.sleep(0)
    turns.resize(1)
    await asyncio.gather(*tasks)
    assert (turns.taken, turns.waiting) == (0, 0)
    return served


def test_projects_take_turns_and_in_a_project_its_sessions() -> None:
    asked = [("a", "1")] * 4 + [("a", "2")] * 2 + [("b", "3")] * 2
    served = asyncio.run(order_of(Turns(), asked))
    assert served == [
        ("a", "1"), ("b", "3"), ("a", "2"), ("b", "3"), ("a", "1"), ("a", "2"), ("a", "1"), ("a", "1"),
    ]  # fmt: skip


def test_who_leaves_while_waiting_or_as_its_turn_comes_keeps_no_place() -> None:
    async def main() -> None:
        turns = Turns()
        turns.resize(1)
        entered = asyncio.Event()

        async def hold(seconds: float) -> None:
            async with turns.take("a", "1"):
                entered.set()
                await asyncio.sleep(seconds)

        first = asyncio.create_task(hold(60))
        await entered.wait()
        waiting = [asyncio.create_task(hold(0)) for _ in range(3)]
        await asyncio.sleep(0)
        assert turns.waiting == 3
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        assert turns.waiting == 2
        turns.resize(2)  # grants the next one a place, and it is cancelled before it knows
        waiting[1].cancel()
        await asyncio.wait(waiting)
        assert waiting[2].exception() is None
        first.cancel()
        await asyncio.wait([first])
        assert (turns.taken, turns.waiting) == (0, 0)

    asyncio.run(main())


def test_an_engine_is_given_a_little_more_than_it_decodes() -> None:
    assert [places_for(n) for n in (1, 4, 64)] == [3, 6, 80]


class FakeEngine:
    """Holds up to two adapters, and says what it was asked for."""

    def __init__(self) -> None:
        self.generation = 1
        self.capabilities = SimpleNamespace(max_adapters=2, max_batch=4)
        self.holds: set[str] = set()
        self.log: list[str] = []
        self.busy = 0

    async def unload_adapter(self, version: str) -> None:
        await asyncio.sleep(0)
        if self.busy:
            self.busy -= 1
            raise Conflict("it has running requests")
        self.holds.discard(version)
        self.log.append(f"-{version}")


def slots_on(engine: Any) -> tuple[AdapterSlots, Any]:
    slots = AdapterSlots()

    async def ask(version: str, *, until: asyncio.Event | None = None) -> None:
        async def load(_: Any) -> None:
            await asyncio.sleep(0.01)
            engine.holds.add(version)
            engine.log.append(f"+{version}")

        async with slots.use(version):
            await slots.bring(version, engine, load)
            assert version in engine.holds, "it was unloaded under its user"
            assert len(engine.holds) <= 2
            if until is not None:
                await until.wait()

    return slots, ask


def test_those_who_ask_at_once_share_a_load_and_one_that_leaves_does_not_end_it() -> None:
    async def main() -> None:
        engine: Any = FakeEngine()
        _, ask = slots_on(engine)
        asking = [asyncio.create_task(ask("v1")) for _ in range(5)]
        await asyncio.sleep(0)
        asking[0].cancel()
        await asyncio.wait(asking)
        assert [task.cancelled() for task in asking] == [True, False, False, False, False]
        assert engine.log == ["+v1"]

    asyncio.run(main())


def test_calls_that_keep_coming_do_not_keep_their_versions_for_ever() -> None:
    async def main() -> None:
        engine: Any = FakeEngine()
        _, ask = slots_on(engine)
        over = asyncio.Event()

        async def keep_coming(version: str) -> None:
            while not over.is_set():  # there is always one of the two
                await ask(version)
                await asyncio.sleep(0.001)

        async def overlapping(version: str) -> None:
            hold = asyncio.Event()
            asking = asyncio.create_task(ask(version, until=hold))
            while not over.is_set():
                await asyncio.sleep(0.005)
                before, hold = hold, asyncio.Event()
                following = asyncio.create_task(ask(version, until=hold))
                await asyncio.sleep(0)
                before.set()
                await asking
                asking = following
            hold.set()
            await asking

        coming = [asyncio.create_task(work(v)) for v in ("v1", "v2") for work in (keep_coming, overlapping)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(20):
            await ask("v3")
        over.set()
        await asyncio.gather(*coming)
        assert "+v3" in engine.log

    asyncio.run(main())


def test_an_adapter_whose_last_request_is_just_ending_is_unloaded_a_little_later() -> None:
    async def main() -> None:
        engine: Any = FakeEngine()
        _, ask = slots_on(engine)
        for version in ("v1", "v2"):
            await ask(version)
        engine.busy = 2
        await ask("v3")
        assert engine.log == ["+v1", "+v2", "-v1", "+v3"]

    asyncio.run(main())


def test_a_load_that_fails_fails_for_all_who_wait_and_not_for_the_next_one() -> None:
    async def main() -> None:
        engine: Any = FakeEngine()
        slots, ask = slots_on(engine)

        async def broken(_: Any) -> None:
            raise InfraError("the files are gone")

        async def fail() -> None:
            async with slots.use("v1"):
                await slots.bring("v1", engine, broken)

        failed = await asyncio.gather(*(fail() for _ in range(3)), return_exceptions=True)
        assert [str(error) for error in failed] == ["the files are gone"] * 3
        assert len({id(error) for error in failed}) == 3
        await ask("v1")
        engine.generation, engine.holds = 2, set()  # a new process
        await ask("v1")
        assert engine.log == ["+v1", "+v1"]

    asyncio.run(main())


def test_jobs_of_one_project_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "MAX_OPEN_JOBS", 2)

    async def main() -> None:
        store = await Store.open(tmp_path)

        async def submit(number: int, project: str = "p", *, again: str = "") -> str:
            info = JobInfo(
                job_id=f"{project}{number}{again}", project=project, name="m", status="queued", created_at=0.0
            )
            claim = IdempotencyRow(scope=project, key=str(number), digest="d", ref=info.job_id)
            job = await store.submit_job(
                JobRow(info=info, spec=JobSpec(config={})), rewards=[], idempotency=claim
            )  # type: ignore[arg-type]
            return job.info.job_id

        assert [await submit(1), await submit(2)] == ["p1", "p2"]
        with pytest.raises(Overloaded, match="2 jobs of the project p"):
            await submit(3)
        assert (
            await submit(2, again="-again") == "p2"
        )  # the same request finds its job however many there are
        assert await submit(1, "q") == "q1"
        await store.cancel_job("p1")
        assert await submit(3) == "p3"  # what was refused has claimed nothing
        await store.close()

    asyncio.run(main())


def test_open_rollouts_are_bounded_by_number_and_by_what_they_remember(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sessions(*held: int) -> Any:
        return [SimpleNamespace(graph=SimpleNamespace(held=tokens)) for tokens in held]

    monkeypatch.setattr(session, "MAX_OPEN", 3)
    monkeypatch.setattr(session, "MAX_OPEN_TOKENS", 100)
    session.check_room(sessions(40, 59))
    with pytest.raises(Overloaded, match="3 rollouts are open"):
        session.check_room(sessions(0, 0, 0))
    with pytest.raises(Overloaded, match="100 tokens"):
        session.check_room(sessions(40, 60))


def test_a_load_that_meets_a_new_process_is_counted_there() -> None:
    async def main() -> None:
        engine: Any = FakeEngine()
        slots, ask = slots_on(engine)
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def load(_: Any) -> None:
            begun.set()
            await goes_on.wait()
            engine.holds.add("v1")

        async def use() -> None:
            async with slots.use("v1"):
                await slots.bring("v1", engine, load)

        loading = asyncio.create_task(use())
        await begun.wait()
        engine.generation = 2  # the process ended, and the request waits for the next one
        goes_on.set()
        await loading
        assert slots.holds("v1")
        await ask("v2")
        await ask("v3")  # it has to make room, as the engine would say too
        assert len(engine.holds) == 2

    asyncio.run(main())
