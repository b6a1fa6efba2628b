"""Reading what a server has recorded, or what lies in a folder that no server serves any more.

With --url (or ART_URL) that server is asked. Otherwise the one that runs on the folder; where none runs, the folder is
served to this command alone, read-only and as `art ui` does it, for as long as the command takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from art.backends.child import running_server
from art.cli._served import backend_of, folder_of, run_to_the_end, where
from art.cli._usage import WrongUsage
from art.errors import ConfigError, NotFound
from art.types.wire_views import RunLine, RunList

if TYPE_CHECKING:
    from pydantic import BaseModel

    from art.backends.http import Connection
    from art.backends.server import ServerBackend

M = TypeVar("M", bound="BaseModel")
T = TypeVar("T")
VIEWS = "/api/v1/views"
STOP_SECONDS = 5.0
"""For a folder that was served to be let go."""
PAGE = 200
"""Entries asked for at once."""
Param = str | int | float | list[str] | None


@dataclass(frozen=True)
class Views:
    """The read API of one server."""

    connection: Connection

    async def get(self, kind: type[M], path: str, **params: Param) -> M:
        """One answer. `path` lies below /api/v1/views unless it begins with /api; a parameter that is None is left out."""
        given = {name: value for name, value in params.items() if value is not None}
        query = f"?{urlencode(given, doseq=True)}" if given else ""
        route = path if path.startswith("/api") else f"{VIEWS}{path}"
        return kind.model_validate(await self.connection.request("GET", f"{route}{query}"))

    async def pages(self, kind: type[M], path: str, *, limit: int, **params: Param) -> AsyncIterator[M]:
        """Page by page until `limit` entries were asked for, or there are no more. A page's `next` is the one behind it."""
        cursor: str | None = None
        while limit > 0:
            asked = min(limit, PAGE)
            page = await self.get(kind, path, limit=asked, cursor=cursor, **params)
            yield page
            limit -= asked
            cursor = getattr(page, "next", None)
            if cursor is None:
                return

    async def run(self, name: str | None) -> tuple[str, str]:
        """Project and name of the run that is meant; None is the only one there is. WrongUsage or NotFound."""
        if name is not None and name.count("/") == 1:
            project, _, rest = name.partition("/")
            if project and rest:
                return project, rest
        runs = [run async for page in self.pages(RunList, "/runs", limit=1000) for run in page.runs]
        return _only(runs, name)


def _only(runs: list[RunLine], name: str | None) -> tuple[str, str]:
    names = ", ".join(f"{run.project}/{run.name}" for run in runs[:10]) or "none"
    found = runs if name is None else [run for run in runs if run.name == name]
    if len(found) == 1:
        return found[0].project, found[0].name
    if name is None:
        raise WrongUsage("a model must be named", cause=f"its runs: {names}", hint="project/name")
    if found:
        raise WrongUsage(f"{name} is the name of several runs", hint=f"name the project too: {names}")
    raise NotFound(f"there is no run {name!r}", cause=f"the runs: {names}")


def run_path(run: tuple[str, str], *parts: str) -> str:
    """Of a run below /views, with further parts."""
    return "/".join(["/runs", *(quote(part, safe="") for part in (*run, *parts))])


def read(
    work: Callable[[Views], Coroutine[Any, Any, T]], url: str | None, key: str | None, path: Path | None
) -> T:
    """Do `work` on the server or the folder that the options name."""

    async def reading() -> T:
        async with looking(url, key, path) as views:
            return await work(views)

    return run_to_the_end(reading())


@asynccontextmanager
async def looking(url: str | None, key: str | None, path: Path | None) -> AsyncGenerator[Views, None]:
    """What the options name, to be read. NotFound for a folder that holds nothing; as `backend_of` otherwise."""
    url, path = where(url, path)
    if url is not None:
        async with _closing(backend_of(url, key, None)) as views:
            yield views
        return
    folder = folder_of(path)
    if not (folder / "server" / "art.db").is_file():
        raise NotFound(
            f"{folder} is no server's folder",
            hint="name it with --path, or a running server with --url or ART_URL",
        )
    if (server := running_server(folder)) is not None:
        async with _closing(backend_of(server.url, server.key, None)) as views:
            yield views
        return
    async with _served_here(folder) as views:
        yield views


@asynccontextmanager
async def _closing(backend: ServerBackend) -> AsyncGenerator[Views, None]:
    async with backend:
        yield Views(backend.connection)


@asynccontextmanager
async def _served_here(folder: Path) -> AsyncGenerator[Views, None]:
    """The folder itself, for this command alone. ConfigError where the server's packages are not installed."""
    try:
        from art.server.lifetime import Stop
        from art.server.viewer import view
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"no server runs on {folder}, and reading it needs packages that are not installed",
            cause=str(error),
            hint="pip install 'agent-reinforcement-trainer[server]', or name a running server with --url",
        ) from error
    stop = Stop()
    ready: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        view(
            folder,
            port=0,
            on_ready=lambda gateway, token: ready.set_result((gateway.url, token)),
            stop=stop,
        ),
        name="view",
    )
    try:
        either: list[asyncio.Future[Any]] = [serving, ready]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()  # why it did not come up
        async with _closing(backend_of(*ready.result(), None)) as views:
            yield views
    finally:
        stop.asked.set()
        await asyncio.wait([serving], timeout=STOP_SECONDS)
        serving.cancel()
