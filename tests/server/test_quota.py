"""Quotas of keys: what is counted, for whom, what is refused and for how long."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from authorisation_kit import key_id
from chat_kit import Served, says

from art.errors import QuotaExceeded
from art.server.auth import Principal
from art.server.quota import Meters, tokens_of
from art.store.key_rows import DAY_SECONDS, KEPT_DAYS
from art.store.records import Role
from art.store.store import DATABASE, Store
from art.types.wire_keys import Quotas


class Clocks:
    """Time as a test sets it."""

    def __init__(self) -> None:
        self.now = 20_000.0 * DAY_SECONDS
        self.ticks = 0.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        self.ticks += seconds


Body = Callable[[Meters, Clocks, Store], Awaitable[None]]


def run(folder: Path, body: Body) -> None:
    async def main() -> None:
        store, clocks = await Store.open(folder), Clocks()
        meters = Meters(store.accounts, now=lambda: clocks.now, ticks=lambda: clocks.ticks)
        try:
            await body(meters, clocks, store)
            await meters.stop()
        finally:
            await store.close()

    asyncio.run(main())


def holder(account: str = "a", **quotas: int) -> Principal:
    return Principal("k", Role.INFER, account=account, quotas=Quotas(**quotas))


def test_calls_of_a_minute_are_those_of_any_60_seconds(tmp_path: Path) -> None:
    async def body(meters: Meters, clocks: Clocks, store: Store) -> None:
        key = holder(calls_per_minute=2)
        for _ in range(2):
            (await meters.enter(key))()
            clocks.pass_by(20)
        with pytest.raises(QuotaExceeded, match="calls_per_minute") as refused:
            await meters.enter(key)
        assert refused.value.retry_after == 20.0  # until the first of them is a minute old
        assert "2 of 2 calls" in refused.value.cause
        clocks.pass_by(19.5)
        with pytest.raises(QuotaExceeded):
            await meters.enter(key)
        clocks.pass_by(0.5)
        (await meters.enter(key))()  # refused calls were not counted
        with pytest.raises(QuotaExceeded) as lowered:
            await meters.enter(holder(calls_per_minute=1))
        assert lowered.value.retry_after == 60.0  # until the newest is over
        await meters.enter(holder("b", calls_per_minute=1))  # each account has its own
        await meters.enter(holder())

    run(tmp_path, body)


def test_only_so_many_requests_are_answered_at_once(tmp_path: Path) -> None:
    async def body(meters: Meters, clocks: Clocks, store: Store) -> None:
        key = holder(max_concurrent=2)
        leave = await meters.enter(key)
        await meters.enter(key)
        with pytest.raises(QuotaExceeded, match="max_concurrent"):
            await meters.enter(key)
        leave()
        await meters.enter(key)
        with pytest.raises(QuotaExceeded):
            await meters.enter(key)

    run(tmp_path, body)


def test_tokens_of_a_day_survive_a_restart_and_end_with_the_day(tmp_path: Path) -> None:
    key = holder(tokens_per_day=100)

    async def uses(meters: Meters, clocks: Clocks, store: Store) -> None:
        leave = await meters.enter(key)
        meters.charge(key, 60)
        leave()
        (await meters.enter(key))()
        meters.charge(key, 60)  # begun below the bound, so it was served
        meters.charge(holder("b"), 1000)  # a key without this quota is not counted
        with pytest.raises(QuotaExceeded, match="tokens_per_day") as refused:
            await meters.enter(key)
        assert refused.value.retry_after == DAY_SECONDS
        assert "120 of 100 tokens" in refused.value.cause

    async def after(meters: Meters, clocks: Clocks, store: Store) -> None:
        clocks.pass_by(DAY_SECONDS - 10)
        with pytest.raises(QuotaExceeded) as refused:
            await meters.enter(key)
        assert refused.value.retry_after == 10.0
        clocks.pass_by(10)
        (await meters.enter(key))()
        meters.charge(key, 100)
        with pytest.raises(QuotaExceeded):
            await meters.enter(key)
        (await meters.enter(holder(tokens_per_day=101)))()  # raised: what was used counts
        clocks.pass_by(-DAY_SECONDS)  # a clock that was set back finds the day as it was left
        with pytest.raises(QuotaExceeded):
            await meters.enter(key)

    run(tmp_path, uses)
    run(tmp_path, after)

    async def forgets(meters: Meters, clocks: Clocks, store: Store) -> None:
        today = int(time.time() // DAY_SECONDS)
        await store.accounts.add_tokens("a", today - KEPT_DAYS - 1, 5)
        await store.accounts.add_tokens("a", today - KEPT_DAYS, 5)
        await store.drop_expired_keys()
        assert await store.accounts.tokens("a", today - KEPT_DAYS - 1) == 0
        assert await store.accounts.tokens("a", today - KEPT_DAYS) == 5

    run(tmp_path, forgets)


def test_requests_that_come_together_share_one_meter(tmp_path: Path) -> None:
    async def body(meters: Meters, clocks: Clocks, store: Store) -> None:
        key = holder(max_concurrent=3)
        found = await asyncio.gather(*(meters.enter(key) for _ in range(8)), return_exceptions=True)
        assert sum(isinstance(item, QuotaExceeded) for item in found) == 5

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, 5),
        ({"prompt_tokens": 3, "completion_tokens": 2}, 5),
        ({"input_tokens": 7, "output_tokens": 9}, 16),
        ({"input_tokens": 7}, 7),
        ({"total_tokens": -3}, 0),
        ({"total_tokens": "many"}, 0),
        ({}, 0),
    ],
)
def test_tokens_of_an_upstream_are_those_it_reports(usage: dict[str, Any], tokens: int) -> None:
    assert tokens_of(usage) == tokens


# -- on a server


def limited(served: Served, role: str = "rollout", **quotas: int) -> str:
    return str(served.api("POST", "keys", {"role": role, "project": "tests", "quotas": quotas})["key"])


def listed(served: Served, key: str) -> dict[str, Any]:
    (info,) = [info for info in served.api("GET", "keys")["keys"] if info["key_id"] == key_id(key)]
    return dict(info)


def ask(served: Served, key: str, path: str = "/v1/chat/completions") -> httpx2.Response:
    body = {"model": "tests/alpha", "messages": says("count"), "max_tokens": 16}
    return served.raw("POST", path, body, key=key)


def test_a_refusal_names_the_quota_and_says_when_to_come_back(served: Served) -> None:
    key = limited(served, calls_per_minute=2)
    assert [ask(served, key).status_code for _ in range(2)] == [200, 200]
    refused = ask(served, key)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "quota_exceeded"
    assert "calls_per_minute" in refused.json()["error"]["message"]
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    anthropic = ask(served, key, "/v1/messages")
    assert (anthropic.status_code, anthropic.json()["error"]["type"]) == (429, "rate_limit_error")
    # Everything that is no request to a model goes on.
    assert served.raw("GET", "/v1/models", key=key).status_code == 200
    opened = served.api("POST", "rollouts", {"model": "tests/alpha"}, key=key)
    # The rollout's key is another one, and uses up the same quota.
    assert ask(served, opened["api_key"], f"/r/{opened['rollout_id']}/v1/chat/completions").status_code == 429
    changed = served.api("PATCH", f"keys/{key_id(key)}", {"quotas": {"calls_per_minute": None}})
    assert changed["quotas"]["calls_per_minute"] is None
    assert ask(served, key).status_code == 200
    assert ask(served, opened["api_key"], f"/r/{opened['rollout_id']}/v1/chat/completions").status_code == 200


def test_tokens_are_counted_as_they_are_recorded(served: Served) -> None:
    key = limited(served, tokens_per_day=10**6)
    usage = [ask(served, key).json()["usage"]["total_tokens"]]
    with served.client(key=key).chat.completions.create(
        model="tests/alpha",
        messages=says("count"),
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        usage += [chunk.usage.total_tokens for chunk in stream if chunk.usage]
    assert len(usage) == 2
    deadline = time.monotonic() + 10
    while listed(served, key)["tokens_today"] != sum(usage):  # written down behind the answer
        assert time.monotonic() < deadline, (listed(served, key), usage)
        time.sleep(0.05)
    served.api(
        "PATCH", f"keys/{key_id(key)}", {"quotas": {"tokens_per_day": sum(usage), "max_concurrent": 4}}
    )
    refused = ask(served, key)
    assert refused.status_code == 429
    assert "tokens_per_day" in refused.json()["error"]["message"]
    # A key in its place goes on with its count, and so do both while the old one still works.
    made = served.api("POST", f"keys/{key_id(key)}/rotate", {"grace_seconds": 60})
    assert [ask(served, name).status_code for name in (key, made["key"])] == [429, 429]
    assert made["info"]["quotas"] == {
        "calls_per_minute": None,
        "tokens_per_day": sum(usage),
        "max_concurrent": 4,
    }
    with sqlite3.connect(f"file:{served.server.path}/server/{DATABASE}?mode=ro", uri=True) as conn:
        rows = conn.execute("SELECT tokens FROM key_usage WHERE account = ?", (key_id(key),)).fetchall()
    assert rows == [(sum(usage),)]


def test_a_quota_that_cannot_be_is_refused(served: Served) -> None:
    key = limited(served, max_concurrent=1)
    for quotas in (
        {"max_concurrent": 0},
        {"tokens_per_day": -1},
        {"calls_per_hour": 5},
        {"max_concurrent": "x"},
    ):
        answer = served.raw("PATCH", f"/api/v1/keys/{key_id(key)}", {"quotas": quotas})
        assert answer.status_code == 400, quotas
        assert next(iter(quotas)) in answer.json()["error"]["cause"]
    assert listed(served, key)["quotas"]["max_concurrent"] == 1
    assert served.raw("PATCH", "/api/v1/keys/admin", {"quotas": {"max_concurrent": 1}}).status_code == 409
    scoped = served.open()["api_key"]
    assert served.raw("PATCH", f"/api/v1/keys/{key_id(scoped)}", {"quotas": {}}).status_code == 409
