"""What a run that repeats itself must find again: the threads it was computed with, the machine, the packages.

The order of a sum depends on how many threads share it, so a deterministic folder keeps the numbers it was first used
with, whatever cores a later start finds.
"""

from __future__ import annotations

import logging
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel, ValidationError

from art.config.server import ServerConfig
from art.errors import ConfigError
from art.server.files import write_json
from art.version import package_version

logger = logging.getLogger(__name__)

RECORD = "deterministic.json"
CPUINFO = Path("/proc/cpuinfo")


class Record(BaseModel):
    """What decides the last bits of a folder's runs beside seeds and inputs."""

    engine_threads: int
    trainer_threads: int
    cpu: str
    torch: str
    art: str


def settle(settings: ServerConfig, server: Path) -> tuple[ServerConfig, list[str]]:
    """The settings with the folder's numbers of threads, and notes for whoever trains; as they are where runs need
    not repeat themselves. `server` is the server's own folder, which keeps the record.

    ConfigError when the settings ask for other numbers than the folder's.
    """
    if not settings.deterministic:
        return settings, []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = Record(
        engine_threads=settings.engine.threads or cores,
        trainer_threads=settings.trainer.threads or cores,
        cpu=cpu_name(),
        torch=_installed("torch"),
        art=package_version(),
    )
    kept = _read(server / RECORD)
    if kept is None:
        kept = here
        write_json(server / RECORD, here.model_dump())
    for name in ("engine", "trainer"):
        asked, threads = getattr(settings, name).threads, getattr(kept, f"{name}_threads")
        if asked not in (None, threads):
            raise ConfigError(
                f"{name}.threads is {asked}, and this folder's deterministic runs are computed with {threads}",
                cause=f"other numbers of threads give other last bits; {server / RECORD} says what it began with",
                hint="leave the setting out, or begin another folder (--path)",
            )
    notes = [
        f"deterministic: threads of the engine {kept.engine_threads}, of the trainer {kept.trainer_threads}"
    ]
    for name in ("cpu", "torch", "art"):
        before, now = getattr(kept, name), getattr(here, name)
        if before != now:
            notes.append(
                f"deterministic: {name} was {before} and is {now}, so earlier runs may not repeat themselves"
            )
    for note in notes:
        logger.info("%s", note)
    threads = {
        "engine": settings.engine.model_copy(update={"threads": kept.engine_threads}),
        "trainer": settings.trainer.model_copy(update={"threads": kept.trainer_threads}),
    }
    return settings.model_copy(update=threads), notes


def cpu_name() -> str:
    """The processor's model, as Linux names it."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _read(file: Path) -> Record | None:
    """The record, or None where there is none. ConfigError for one that is damaged."""
    try:
        return Record.model_validate_json(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read",
            cause=str(error),
            hint="restore it, or delete it to begin anew with this machine's numbers of threads",
        ) from error
