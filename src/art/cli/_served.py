"""What commands that use a server share: where it is, which model is meant, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from art.cli._complete import model_names
from art.cli._usage import WrongUsage
from art.errors import ConfigError, NotFound
from art.utils.console import say

if TYPE_CHECKING:
    from art.backends.server import ServerBackend
    from art.model import TrainableModel
    from art.types import wire

T = TypeVar("T")
SLOW_SECONDS = 3.0
"""Of silence, before a person is told what is being waited for."""
REMIND_SECONDS = 30.0
"""Between two such lines."""

URL_VARIABLE = "ART_URL"
Url = Annotated[
    str | None,
    typer.Option(
        help=f"A server that runs already, e.g. http://127.0.0.1:7999, with its key in ART_API_KEY (default: {URL_VARIABLE}).",
        show_default=False,
    ),
]
# Not shown: a key on a command line can be read in the list of processes, and stays in the shell's history.
Key = Annotated[str | None, typer.Option(help="The key of --url.", envvar="ART_API_KEY", hidden=True)]
Path_ = Annotated[
    Path | None,
    typer.Option(
        "--path", help="Folder of a local server, started when none runs (default: .art).", show_default=False
    ),
]
ReadPath = Annotated[
    Path | None,
    typer.Option(
        "--path", help="Folder of a server, whether it runs or not (default: .art).", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON (art schema).")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="project/name, or project/name@step. Default: the only one there is.",
        autocompletion=model_names,
    ),
]
BaseModel = Annotated[
    str | None, typer.Option(help="Registers --model on this base model (a folder or a hub id) if it is new.")
]


@dataclass(frozen=True)
class Chosen:
    """The model that a command line names."""

    model: TrainableModel[Any, Any]
    step: int | None
    """The step it is pinned to; None is the latest."""


def where(url: str | None, path: Path | None) -> tuple[str | None, Path | None]:
    """What the options name: a URL, or a folder; ART_URL where they name neither. WrongUsage when they name both."""
    if url is not None and path is not None:
        raise WrongUsage("--url and --path name two servers", hint="give one of them")
    if url is None and path is None:
        url = os.environ.get(URL_VARIABLE) or None
    return url, path


def folder_of(path: Path | None) -> Path:
    """The folder that --path names, or the one that programs here use."""
    from art.backends.local import default_path

    return (default_path(Path.cwd()) if path is None else path).absolute()


def runs_on(folder: Path) -> bool:
    """Whether a server holds the folder: its lock ends with it, however it ends."""
    import fcntl

    if not (folder / "server" / "server.json").exists():
        return False  # and the lock is left alone: a server that takes it just now would find it taken
    try:
        fd = os.open(folder / "server" / "server.lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def address_on(folder: Path) -> tuple[str, str]:
    """Address and key of the server that runs on a folder. ConfigError where they cannot be known."""
    try:
        url = str(json.loads((folder / "server" / "server.json").read_text())["url"])
        return url, (folder / "server" / "admin.key").read_text().strip()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the server on {folder} cannot be asked",
            cause=f"{type(error).__name__}: {error}",
            hint="it is still starting, or you may not read its folder",
        ) from error


def backend_of(url: str | None, key: str | None, path: Path | None) -> ServerBackend:
    """The server that the options name. WrongUsage when they contradict each other."""
    url, path = where(url, path)
    if url is None:
        from art.backends.local import LocalBackend

        return LocalBackend(path=path)
    if not key:
        raise WrongUsage(
            "--url needs a key",
            hint="set ART_API_KEY; the server's own key lies in server/admin.key in its folder",
        )
    from art.backends.remote import RemoteBackend

    return RemoteBackend(url, key)


async def choose_model(backend: ServerBackend, name: str | None, base_model: str | None) -> Chosen:
    """The registered model of that name; with `base_model` it is registered where it does not exist.

    NotFound, or ConfigError when the name is missing and there is not exactly one model.
    """
    telling = asyncio.create_task(_tell_of_waiting(), name="waiting")
    try:
        return await _chosen(backend, name, base_model)
    finally:
        telling.cancel()


async def _tell_of_waiting() -> None:
    """Say what takes so long, again and again: the first use of a model converts it, which takes minutes on a busy machine."""
    waited = SLOW_SECONDS
    await asyncio.sleep(waited)
    say("waiting for the server and for the base model to be read; its first use converts it")
    while True:
        await asyncio.sleep(REMIND_SECONDS)
        waited += REMIND_SECONDS
        say(f"still waiting ({waited:.0f} s); the server's logs/trainer.log tells what the trainer does")


async def find_model(backend: ServerBackend, name: str | None) -> wire.ModelInfo:
    """What the server knows of a model, without registering any. Raises as `choose_model`."""
    from art.types import wire

    answer = await backend.connection.request("GET", "/api/v1/models")
    found = _find(wire.ModelList.model_validate(answer).models, name, None)
    assert found is not None, "without a base model it is found, or an error"
    return found


async def _chosen(backend: ServerBackend, name: str | None, base_model: str | None) -> Chosen:
    from art.types import wire

    answer = await backend.connection.request("GET", "/api/v1/models")
    models = wire.ModelList.model_validate(answer).models
    wanted, step = _split(name) if name is not None else (None, None)
    info = _find(models, wanted, base_model)
    if info is None:
        assert wanted is not None
        assert base_model is not None
        model = _new_model(wanted, base_model)
    elif base_model is not None and base_model != info.config.base_model:
        raise ConfigError(
            f"{info.inference_name} is on another base model",
            cause=f"it was registered on {info.config.base_model}",
            hint="leave --base-model out, or give another --model",
        )
    else:
        model = _known_model(info)
        model.register(backend)
        # Bound, not registered: a key that may open rollouts need not be one that may register.
        endpoint = await backend.connection.endpoint()
        model.bind(info, url=endpoint.url, key=endpoint.key, base_path=backend.base_path())
        return Chosen(model, step)
    await model.register(backend)
    return Chosen(model, step)


def _split(name: str) -> tuple[str, int | None]:
    wanted, at, step = name.partition("@")
    if not at:
        return wanted, None
    if not step.isdecimal():
        raise WrongUsage(
            f"{name!r} names no step", hint="--model project/name@3, or without @ for the latest"
        )
    return wanted, int(step)


def _find(models: list[wire.ModelInfo], wanted: str | None, base_model: str | None) -> wire.ModelInfo | None:
    names = ", ".join(sorted(info.inference_name for info in models)) or "none"
    if wanted is None:
        if len(models) == 1 and base_model is None:
            return models[0]
        raise WrongUsage(
            "--model is missing",
            cause=f"the server's models: {names}",
            hint="--model project/name; with --base-model a new one is registered",
        )
    found = [info for info in models if wanted in (info.inference_name, info.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise WrongUsage(f"{wanted} is the name of several models", hint=f"name the project too: {names}")
    if base_model is None:
        raise NotFound(
            f"the server has no model {wanted}",
            cause=f"its models: {names}",
            hint="--base-model FOLDER_OR_HUB_ID registers it",
        )
    return None


def _new_model(wanted: str, base_model: str) -> TrainableModel[Any, Any]:
    from art.model import TrainableModel

    project, _, name = wanted.rpartition("/")
    if not project or not name:
        raise WrongUsage(f"a new model needs a project, {wanted!r} has none", hint="--model project/name")
    return TrainableModel(name=name, project=project, base_model=base_model)


def _known_model(info: wire.ModelInfo) -> TrainableModel[Any, Any]:
    from art.model import TrainableModel

    return TrainableModel(name=info.name, project=info.project, **info.config.model_dump())


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; Ctrl-C, SIGTERM and SIGHUP cancel it, and it is given the time to end its programs."""
    stopped: list[signal.Signals] = []

    async def guarded() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: signal.Signals) -> None:
            stopped.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
        return await work

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if not stopped:
            raise
        sys.exit(128 + stopped[0])
