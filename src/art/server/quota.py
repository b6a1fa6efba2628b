"""What keys use of the models, and when that is more than their quotas allow.

Calls are counted in memory, for they are forgotten within a minute; tokens of a day in the store too, so that a
restart gives nobody a second day. The writing follows the answer: a `kill -9` loses the tokens of the calls that
ended in that instant. Keys without quotas are not counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from art.errors import ArtError, QuotaExceeded
from art.server.auth import Principal
from art.store.accounts import Accounts
from art.store.key_rows import DAY_SECONDS, day_of

logger = logging.getLogger(__name__)

MINUTE_SECONDS = 60.0


@dataclass(slots=True)
class _Meter:
    """Of one account: a key with those that it replaced, and with the rollouts that they opened."""

    day: int
    tokens: int
    """Of `day`."""
    calls: deque[float] = field(default_factory=deque)
    """When the calls of the last minute began, on the monotonic clock."""
    running: int = 0


class Meters:
    """The meters of one server. `now` is Unix time, `ticks` a clock that never jumps; both in seconds."""

    def __init__(
        self,
        accounts: Accounts,
        *,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accounts = accounts
        self._now = now
        self._ticks = ticks
        self._meters: dict[str, _Meter] = {}
        self._writes: set[asyncio.Task[None]] = set()

    async def enter(self, principal: Principal) -> Callable[[], None]:
        """Count a request to a model; what is returned is to be called when it has been answered.

        QuotaExceeded naming the quota, and with the seconds until it is free again. A refused request counts nothing.
        """
        quotas = principal.quotas
        if not quotas.bounded:
            return _nothing
        meter = await self._meter(principal.account)
        if quotas.tokens_per_day is not None and meter.tokens >= quotas.tokens_per_day:
            left = DAY_SECONDS - self._now() % DAY_SECONDS
            used = f"{meter.tokens} of {quotas.tokens_per_day} tokens were used today (UTC)"
            raise _exceeded("tokens_per_day", used, left)
        if quotas.max_concurrent is not None and meter.running >= quotas.max_concurrent:
            raise _exceeded("max_concurrent", f"{meter.running} requests of it are being answered", 1.0)
        ticks = self._ticks()
        while meter.calls and ticks - meter.calls[0] >= MINUTE_SECONDS:
            meter.calls.popleft()
        if quotas.calls_per_minute is not None and len(meter.calls) >= quotas.calls_per_minute:
            # The bound may have been lowered: so many must be over before there is room for one.
            free = meter.calls[len(meter.calls) - quotas.calls_per_minute] + MINUTE_SECONDS - ticks
            used = f"{len(meter.calls)} of {quotas.calls_per_minute} calls were begun within the last minute"
            raise _exceeded("calls_per_minute", used, free)
        meter.calls.append(ticks)
        meter.running += 1

        def leave() -> None:
            meter.running -= 1

        return leave

    def charge(self, principal: Principal, tokens: int) -> None:
        """Tokens that a call of `principal`, which had entered, has used."""
        if principal.quotas.tokens_per_day is None or tokens <= 0:
            return
        meter, day = self._meters[principal.account], day_of(self._now())
        if meter.day != day:
            meter.day, meter.tokens = day, 0
        meter.tokens += tokens
        writing = asyncio.create_task(self._write(principal.account, day, tokens), name="quota")
        self._writes.add(writing)
        writing.add_done_callback(self._writes.discard)

    async def stop(self) -> None:
        """Finish what is being written."""
        if self._writes:
            await asyncio.wait(self._writes)

    async def _meter(self, account: str) -> _Meter:
        """The account's meter, at today."""
        day = day_of(self._now())
        meter = self._meters.get(account)
        if meter is not None and meter.day == day:
            return meter
        tokens = await self._accounts.tokens(account, day)
        meter = self._meters.setdefault(account, _Meter(day, tokens))  # another request may have been first
        if meter.day != day:
            meter.day, meter.tokens = day, tokens
        return meter

    async def _write(self, account: str, day: int, tokens: int) -> None:
        try:
            await self._accounts.add_tokens(account, day, tokens)
        except ArtError as error:
            # Nobody waits for this. The meter goes on; only a restart would forget these tokens.
            logger.error("%d tokens of the key %s were not written down: %s", tokens, account, error)


def tokens_of(usage: Mapping[str, Any]) -> int:
    """Tokens of a call to an upstream, as its dialect reports them; 0 where it does not."""
    for names in (
        ("total_tokens",),
        ("prompt_tokens", "completion_tokens"),
        ("input_tokens", "output_tokens"),
    ):
        found = [value for name in names if isinstance(value := usage.get(name), int)]
        if found:
            return max(0, sum(found))
    return 0


def _nothing() -> None:
    """Of a key without quotas."""


def _exceeded(quota: str, used: str, seconds: float) -> QuotaExceeded:
    error = QuotaExceeded(
        f"this key's quota {quota} is used up",
        cause=used,
        hint=f"try again in {seconds:.0f} s, or have the quota changed: art key quota KEY_ID",
    )
    error.retry_after = seconds
    return error
