"""OpenAI clients that find the server by themselves and say which rollout is calling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2

from art.backends.http import CONNECT_SECONDS, PLACEHOLDER_KEY, PLACEHOLDER_URL
from art.errors import ConfigError
from art.rollouts.scope import HEADER_GROUP, HEADER_MEMBER, HEADER_PROJECT, HEADER_ROLLOUT, current_scope

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    from art.backends.http import Connection
    from art.model import Model

SILENCE_SECONDS = 1200.0
"""Longest silence of a completion: a slow machine with a full queue."""


class ModelTransport(httpx2.AsyncBaseTransport):
    """Sets the model up before its first call, and says which model's rollout is calling."""

    def __init__(self, model: Model[Any, Any]) -> None:
        self._model = model
        self._connection = model.backend().connection

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await self._model.ready()
        model = self._model
        request.headers.setdefault(HEADER_PROJECT, model.project)
        scope = current_scope()
        if scope is not None and HEADER_ROLLOUT not in request.headers:
            request.headers[HEADER_ROLLOUT] = scope.id_for(self._connection, model.project, model.name)
            if scope.group_id is not None:
                request.headers[HEADER_GROUP] = scope.group_id
                request.headers[HEADER_MEMBER] = str(scope.member)
        return await self._connection.transport.handle_async_request(request)


def server_client(model: Model[Any, Any]) -> AsyncOpenAI:
    """A client of the model's server. Its address may still be unknown: the transport fills it in."""
    from openai import AsyncOpenAI

    known = model.__pydantic_private__ or {}
    timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    transport = ModelTransport(model)
    return AsyncOpenAI(
        base_url=known.get("_inference_base_url") or f"{PLACEHOLDER_URL}/v1",
        api_key=known.get("_inference_api_key") or PLACEHOLDER_KEY,
        timeout=timeout,
        http_client=httpx2.AsyncClient(transport=transport, timeout=timeout),
    )


def session_client(connection: Connection, base_url: str, api_key: str) -> AsyncOpenAI:
    """A client bound to one rollout by its URL and key, over the connections all rollouts share."""
    from openai import AsyncOpenAI

    timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    http = httpx2.AsyncClient(transport=connection.transport, timeout=timeout)
    return AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=timeout, http_client=http)


def sync_session_client(connection: Connection, base_url: str, api_key: str) -> OpenAI:
    """The synchronous twin of `session_client`."""
    from openai import OpenAI

    timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    return OpenAI(base_url=base_url, api_key=api_key, timeout=timeout, http_client=connection.sync_client)


def plain_client(base_url: str | None, api_key: str | None) -> AsyncOpenAI:
    """A client of any OpenAI-compatible service; None leaves the choice to the openai package.

    ConfigError when there is no key.
    """
    from openai import AsyncOpenAI, OpenAIError

    timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    try:
        return AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=timeout)
    except OpenAIError as error:
        raise ConfigError(
            "the model has no key to make a client with",
            cause=str(error),
            hint="art.Model(..., inference_base_url=..., inference_api_key=...), or set OPENAI_API_KEY",
        ) from error
