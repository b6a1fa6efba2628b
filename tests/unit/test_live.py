"""Who listens is told of what changed: its own alone, the newest of it, and never without bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
from starlette.types import Message

from art.errors import Overloaded
from art.server import live
from art.server.live import RESYNC, Listener, Live
from art.server.rates import Rates
from art.server.views_live import EventStream
from art.store.changes import Change, Kind


def change(
    name: str = "m", *, id: str = "r", kind: Kind = "rollout", project: str = "p", status: str = ""
) -> Change:
    return Change(kind=kind, project=project, name=name, id=id, status=status, step=0)


@pytest.mark.parametrize(
    ("listener", "heard"),
    [
        (Listener(own=None, project=None, name=None), ["a", "b", "c"]),
        (Listener(own="p", project=None, name=None), ["a", "b"]),
        (Listener(own="q", project="p", name=None), []),
        (Listener(own=None, project="p", name="n"), ["b"]),
    ],
)
def test_a_listener_hears_what_it_asked_for_and_may_see(listener: Listener, heard: list[str]) -> None:
    for one in (change(id="a"), change("n", id="b"), change(id="c", project="q")):
        listener.take(one)
    assert [one.id for one in listener.parcel()] == heard
    assert listener.parcel() == []


def test_of_one_thing_the_newest_is_told() -> None:
    listener = Listener(own=None, project=None, name=None)
    for status in ("running", "finished", "trained"):
        listener.take(change(id="a", status=status))
        listener.take(change(id="b"))
    assert [(one.id, one.status) for one in listener.parcel()] == [("a", "trained"), ("b", "")]


def test_who_does_not_read_is_told_to_ask_anew() -> None:
    listener = Listener(own="p", project="p", name="m")
    for number in range(live.MOST_PENDING + 50):
        listener.take(change(id=str(number)))
    assert listener.parcel() == [RESYNC]
    listener.take(change(id="later"))
    assert [one.id for one in listener.parcel()] == ["later"]


def test_pages_are_told_from_any_thread_and_end_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(live, "MOST_LISTENERS", 1)

    async def main() -> list[list[str]]:
        told = Live()
        told.start()
        listener = Listener(own=None, project=None, name=None)
        found: asyncio.Queue[list[str]] = asyncio.Queue()

        async def read() -> None:
            with told.listening(listener):
                with pytest.raises(Overloaded):
                    told.check_room()
                async for parcel in told.parcels(listener):
                    found.put_nowait([one.id for one in parcel])

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        await asyncio.to_thread(told.tell, [change(id="a"), change(id="b")])
        heard = [await found.get()]
        told.resync()
        heard.append(await found.get())
        told.close()
        await reading
        told.check_room()
        return heard

    assert asyncio.run(main()) == [["a", "b"], [""]]


def test_one_account_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_OF_ACCOUNT", 1)
    told = Live()
    with told.listening(Listener(own="p", project=None, name=None, account="one")):
        with pytest.raises(Overloaded):
            told.check_room("one")
        told.check_room("another")
    told.check_room("one")


def test_many_that_come_at_once_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is, from the moment at which its answer begins; its first line may be far away."""
    monkeypatch.setattr(live, "MOST_OF_ACCOUNT", 1)
    told = Live()
    listener = Listener(own="p", project=None, name=None, account="one")

    async def lines() -> AsyncGenerator[str, None]:
        yield ""

    async def send(message: Message) -> None:
        with pytest.raises(Overloaded):
            told.check_room("one")

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    asyncio.run(EventStream(lines(), told, listener)(scope, receive, send))
    told.check_room("one")


def test_what_was_sampled_counts_and_is_no_news() -> None:
    told = Live()
    listener = Listener(own=None, project=None, name=None)
    with told.listening(listener):
        told.publish([change(id="0", kind="sampled"), change(id="1", kind="sampled")])
    assert listener.parcel() == []
    assert told.rates.per_minute("calls") > 0


def test_rates_are_of_the_last_minute() -> None:
    now = [0.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    rates = Rates(clock)
    rates.count("tokens", 30)
    assert rates.per_second("tokens") == 30.0  # a second has not passed
    now[0] = 30.0
    rates.count("tokens", 30)
    assert (rates.per_second("tokens"), rates.per_minute("tokens"), rates.per_second("calls")) == (
        2.0,
        120.0,
        0.0,
    )
    now[0] = 61.0
    assert rates.per_second("tokens") == 0.5
    now[0] = 200.0
    assert rates.per_second("tokens") == 0.0
