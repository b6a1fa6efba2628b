"""The environment of this process for the time of a session, under one lock.

The environment is the process's own and shared by all threads; only agents that read their base URL from
there need this, and they take turns.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

SECRETS = ("ART_API_KEY", "ANTHROPIC_AUTH_TOKEN")
"""The server's own key is none of an agent's business; it gets one for its rollout. Another service's token would go
out beside that one: Anthropic's SDK sends both."""
_lock = threading.Lock()
_POLL_SECONDS = 0.01


@contextmanager
def session_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables, and put back what was there. Blocks the thread while another session holds them."""
    with _lock, _set(values):
        yield


@asynccontextmanager
async def session_environment_async(values: Mapping[str, str]) -> AsyncIterator[None]:
    """The same for a block that awaits: waits for its turn without blocking the event loop."""
    while not _lock.acquire(blocking=False):  # noqa: ASYNC110 - shared with threads and other loops
        await asyncio.sleep(_POLL_SECONDS)
    try:
        with _set(values):
            yield
    finally:
        _lock.release()


@contextmanager
def _set(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def child_environment(
    values: Mapping[str, str], *, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of an agent in a process of its own: `inherited` (None: ours) without secrets, and `values`."""
    base = os.environ if inherited is None else inherited
    return {**{name: value for name, value in base.items() if name not in SECRETS}, **values}
