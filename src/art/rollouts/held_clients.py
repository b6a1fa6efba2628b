"""Clients an agent made before ART saw it: found, checked, and pointed at a session while it runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from art.errors import ConfigError

_PACKAGES = {"openai", "anthropic"}
_DEPTH = 3
"""agent -> its model object -> that object's client: deeper than that nothing is looked for."""
_MAX_OBJECTS = 2000
"""A bound for agents that hold a lot of data."""


def held_clients(agent: object) -> list[Any]:
    """SDK clients (openai, anthropic) that `agent` holds, recognised by package and base_url: among an
    object's attributes, among the globals and closure of a function."""
    found: list[Any] = []
    seen: set[int] = set()

    def visit(item: object, depth: int) -> None:
        if id(item) in seen or len(seen) >= _MAX_OBJECTS:
            return
        seen.add(id(item))
        if type(item).__module__.partition(".")[0] in _PACKAGES and hasattr(item, "base_url"):
            found.append(item)
        elif depth < _DEPTH:
            for child in _children(item):
                visit(child, depth + 1)

    if inspect.isfunction(agent):
        names = inspect.getclosurevars(agent)
        visit([*names.nonlocals.values(), *names.globals.values()], 0)
    else:
        visit(agent, 0)
    return found


def _children(item: object) -> list[object]:
    if isinstance(item, ModuleType | type) or inspect.isroutine(item):
        return []
    if isinstance(item, Mapping):
        return list(item.values())
    if isinstance(item, list | tuple | set):
        return list(item)
    attributes = getattr(item, "__dict__", None)
    return list(attributes.values()) if isinstance(attributes, dict) else []


def require_gateway(clients: list[Any], gateway_url: str) -> list[Any]:
    """Those of `clients` that point at the gateway; ConfigError when there are clients and none does."""
    target = urlsplit(gateway_url)
    ours = [client for client in clients if urlsplit(str(client.base_url)).netloc == target.netloc]
    if clients and not ours:
        elsewhere = ", ".join(sorted({str(client.base_url) for client in clients}))
        raise ConfigError(
            "the agent made its own client before it was wrapped, and that does not point at ART",
            cause=f"it calls {elsewhere}; the server is {gateway_url}",
            hint="wrap the class or a function that makes the agent (art.wrap(Agent, reward)), "
            f'or make the client with base_url="{gateway_url}/v1"',
        )
    return ours


@contextmanager
def pointed_at(clients: list[Any], base_url: str, api_key: str) -> Iterator[None]:
    """Send the clients' calls to a session while the block runs, then back. `base_url` ends with `/v1`, which
    Anthropic's clients append by themselves."""
    before = [(client, client.base_url, client.api_key) for client in clients]
    try:
        for client in clients:
            anthropic = type(client).__module__.partition(".")[0] == "anthropic"
            client.base_url = base_url.removesuffix("/v1") if anthropic else base_url
            client.api_key = api_key
        yield
    finally:
        for client, url, key in before:
            client.base_url, client.api_key = url, key
