"""What a running server was started with, as it says itself: beside its address, for programs that ask for settings."""

from __future__ import annotations

from typing import Any

from art.config.load import NESTED
from art.config.server import ServerConfig

RECORD = "settings.json"
"""In the server's folder, written at each start: {"pid", "settings"}."""
OWN = ("path", "port", "stop_with_clients", "deterministic")
"""Settings that the command line of the server says."""


def settings_of(server: ServerConfig) -> dict[str, Any]:
    """Every setting by its dotted name (`engine.threads`, `server.call_seconds`), as JSON data; without OWN."""
    data = server.model_dump(mode="json")
    inner = {section: data.pop(section) for section in NESTED}
    found = {f"server.{name}": value for name, value in data.items() if name not in OWN}
    return found | {
        f"{section}.{name}": value for section, table in inner.items() for name, value in table.items()
    }
