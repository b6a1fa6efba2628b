"""`art ui`: the dashboard of a folder, whether a server runs on it or not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from art.cli._output import Dashboard

if TYPE_CHECKING:
    from art.backends.http import Endpoint
    from art.server.state import Gateway

JSON_LINES = "art.cli._output:Dashboard"
KEY_SECONDS = 12 * 3600
"""Of the key that is made on a running server: a working day."""
READ_SECONDS = 5.0
"""A browser that was started has read its first page by then."""


def command(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of the run (default: .art).", metavar="FOLDER")
    ] = None,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the address and open no browser.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The address as one line of JSON; opens no browser.")
    ] = False,
) -> None:
    """Open the dashboard of a run's folder.

    Where a server runs on the folder, its dashboard is opened with a new admin key that ends after 12 hours. Otherwise the
    folder is served from here until Ctrl-C: nothing is written into it, nothing is sampled or trained, and only this machine
    can reach it. The address holds the key; whoever has it sees everything in the folder.

    Exit status: 0 after Ctrl-C, 1 when the folder holds no run or cannot be read, 2 for a wrong command line.

    Examples:

      art ui runs/weather

      art ui --no-open --port 8080
    """
    from art.backends.child import running_server
    from art.backends.local import default_path

    root = (folder if folder is not None else default_path(Path.cwd())).absolute()
    opens = not (no_open or as_json)
    endpoint = running_server(root)
    if endpoint is None:
        _view(root, port=port, opens=opens, as_json=as_json)
        return
    address = _address(endpoint.url, _new_key(endpoint))
    _tell(root, address, running=True, as_json=as_json)
    with _opened(address, opens=opens) as started:
        if started:
            time.sleep(READ_SECONDS)


def _view(root: Path, *, port: int, opens: bool, as_json: bool) -> None:
    """Serve the folder until a signal comes."""
    from art.errors import ConfigError

    try:
        from art.server.viewer import view
    except ModuleNotFoundError as error:
        raise ConfigError(
            "art ui needs packages that are not installed",
            cause=str(error),
            hint="pip install 'agent-reinforcement-trainer[server]'",
        ) from error
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    with contextlib.ExitStack() as stack:

        def say_ready(gateway: Gateway, key: str) -> None:
            address = _address(gateway.url, key)
            _tell(root, address, running=False, as_json=as_json)
            stack.enter_context(_opened(address, opens=opens))

        asyncio.run(view(root, port=port, on_ready=say_ready))


def _new_key(endpoint: Endpoint) -> str:
    """An admin key for the browser that ends by itself: addresses stay in histories."""
    from art.backends.remote import RemoteBackend
    from art.cli._served import run_to_the_end
    from art.types.wire_keys import CreatedKey, CreateKey

    wanted = CreateKey(role="admin", label="art ui", expires_in_seconds=KEY_SECONDS)
    with RemoteBackend(endpoint.url, endpoint.key) as backend:
        answer = run_to_the_end(backend.connection.request("POST", "/api/v1/keys", body=wanted))
    return CreatedKey.model_validate(answer).key


def _address(url: str, key: str) -> str:
    """What stands behind `#` is sent to no server."""
    return f"{url}/#key={quote(key)}"


def _tell(root: Path, address: str, *, running: bool, as_json: bool) -> None:
    if as_json:
        told = Dashboard(url=address, folder=str(root), server_runs=running)
        typer.echo(told.model_dump_json())
        return
    what = "the server that runs on it" if running else "read-only; Ctrl-C ends it"
    typer.echo(f"dashboard of {root} ({what}):")
    typer.echo(f"  {address}")


@contextlib.contextmanager
def _opened(address: str, *, opens: bool) -> Iterator[bool]:
    """Start a browser at the address, where there is one; False where none was started.

    By a file that only this user can read: the command line of a browser is everybody's to see, and holds no key so.
    """
    if not opens or not _has_screen():
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="art-ui-") as folder:
        file = Path(folder) / "dashboard.html"
        file.write_text(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">'
        )
        yield webbrowser.open(file.as_uri())


def _has_screen() -> bool:
    """Whether a browser would have one. On a terminal alone, Python would start a text browser in it."""
    return sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
