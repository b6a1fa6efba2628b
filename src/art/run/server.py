"""The server of a run: one that runs already, or one on this machine that gets the settings of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.config.load import FLAG, NESTED, PREFIX, SEPARATOR
from art.config.running import OWN, RECORD, settings_of
from art.config.units import NONE
from art.errors import ConfigError, UnsupportedOption
from art.utils.files import read_json

if TYPE_CHECKING:
    from art.backends.local import LocalBackend
    from art.backends.server import ServerBackend
    from art.config.load import Loaded

SECTIONS = ("server", *NESTED)


def backend_of(loaded: Loaded, key: str | None) -> ServerBackend:
    """The server that the settings name. ConfigError where they cannot be kept."""
    if loaded.run.url is not None:
        from art.backends.remote import RemoteBackend

        if not key:
            raise ConfigError(
                "run.url needs a key",
                hint="ART_API_KEY in the environment; the server's own lies in server/admin.key in its folder",
            )
        return RemoteBackend(loaded.run.url, key, gpu_cost_per_hour_usd=loaded.run.gpu_cost_per_hour_usd)
    from art.backends.local import LocalBackend

    for name in ("port", "stop_with_clients"):
        if loaded.origins.get(f"server.{name}") in (FLAG, str(loaded.file)):
            raise UnsupportedOption(
                f"server.{name} would be ignored",
                cause="a run that starts its server lets it take a free port, and end with the run",
                hint=f"leave server.{name} out, or start `art serve` yourself and name it in run.url",
            )
    return LocalBackend(
        path=loaded.server.path if "server.path" in loaded.origins else None,
        serve_environment=_variables(loaded),
        deterministic=loaded.server.deterministic,
        gpu_cost_per_hour_usd=loaded.run.gpu_cost_per_hour_usd,
    )


async def settle(backend: LocalBackend, loaded: Loaded) -> None:
    """Start the server, or find it. ConfigError where it runs with other settings than this run asks for."""
    await backend.connection.endpoint()
    if backend.started_server:
        return
    folder = backend.path / "server"
    pid = (read_json(folder / "server.json") or {}).get("pid")
    said = read_json(folder / RECORD) or {}
    # Of another process, it is what an earlier server ran with.
    found: dict[str, Any] = said["settings"] if said.get("pid") == pid else {}
    wanted = settings_of(loaded.server)
    others = {
        name: wanted[name] for name in _asked(loaded) if name not in found or found[name] != wanted[name]
    }
    if others:
        told = [
            f"{name} is {_text(found[name]) if name in found else 'not known'}, and not {_text(value)}"
            for name, value in sorted(others.items())
        ]
        raise ConfigError(
            f"the server on {backend.path} (pid {pid}) runs with other settings than this run asks for",
            cause="; ".join(told),
            hint="end the programs that use it (it ends with the last of them, `art serve` with Ctrl-C) and run again; or"
            " leave these settings out, or use another folder: server.path",
        )


def _asked(loaded: Loaded) -> set[str]:
    """The settings of `settings_of` that the file or a flag sets, or a part of."""
    given = (name.split(".") for name in _given(loaded))
    return {
        f"{section}.{setting}" for section, setting, *_ in given if section != "server" or setting not in OWN
    }


def _given(loaded: Loaded) -> list[str]:
    """The server's settings that the file or a flag sets."""
    said = (FLAG, str(loaded.file))
    return [
        name
        for name, origin in loaded.origins.items()
        if name.split(".")[0] in SECTIONS and name.split(".")[1] != "path" and origin in said
    ]


def _variables(loaded: Loaded) -> dict[str, str]:
    """What the file and the flags say, as variables: a server that is started anew has them still."""
    found = {}
    for name in _given(loaded):
        section, _, setting = name.partition(".")
        if section == "server" and setting in OWN:
            continue
        data: Any = loaded.sections[section].model_dump(mode="json")
        for part in setting.split("."):
            data = data[part]
        variable = f"{PREFIX}{section}{SEPARATOR}{setting.replace('.', SEPARATOR)}".upper()
        found[variable] = _text(data)
    return found


def _text(value: Any) -> str:
    """A value as a variable says it."""
    if value is None:
        return NONE
    if isinstance(value, list) and not any("," in str(item) for item in value):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def folder_of(backend: ServerBackend) -> Path | None:
    """Where the server keeps what it has, if that is on this machine."""
    found = backend.base_path()
    return None if found is None else Path(found)
