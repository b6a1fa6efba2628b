"""OpenAI and Anthropic clients that find the server by themselves and say which rollout is calling.

Every answer to one of our own clients also goes into the recording around the call (`art.auto_trajectory`):
by the client's own response hook; no HTTP library is patched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import httpx2

from art.backends.http import CONNECT_SECONDS, PLACEHOLDER_KEY, PLACEHOLDER_URL
from art.errors import ConfigError
from art.rollouts.recording import Recording, current_recording
from art.rollouts.scope import HEADER_GROUP, HEADER_MEMBER, HEADER_PROJECT, HEADER_ROLLOUT, current_scope

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
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
    hooks = Recorder((model.project, model.name)).hooks()
    return AsyncOpenAI(
        base_url=known.get("_inference_base_url") or f"{PLACEHOLDER_URL}/v1",
        api_key=known.get("_inference_api_key") or PLACEHOLDER_KEY,
        timeout=timeout,
        http_client=httpx2.AsyncClient(transport=ModelTransport(model), timeout=timeout, event_hooks=hooks),
    )


def plain_client(model: Model[Any, Any]) -> AsyncOpenAI:
    """A client of any OpenAI-compatible service; what the model does not say is left to the openai package.

    ConfigError when there is no key.
    """
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError

    known = model.__pydantic_private__ or {}
    base_url, api_key = known.get("_inference_base_url"), known.get("_inference_api_key")
    timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    http = DefaultAsyncHttpxClient(timeout=timeout, event_hooks=Recorder((model.project, model.name)).hooks())
    try:
        return AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=timeout, http_client=http)
    except OpenAIError as error:
        raise ConfigError(
            "the model has no key to make a client with",
            cause=str(error),
            hint="art.Model(..., inference_base_url=..., inference_api_key=...), or set OPENAI_API_KEY",
        ) from error


class _Borrowed(httpx2.AsyncBaseTransport):
    """A transport that other rollouts use too: an agent that closes its client does not close it."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._transport.handle_async_request(request)


class _SyncBorrowed(httpx2.BaseTransport):
    """The synchronous twin of `_Borrowed`."""

    def __init__(self, transport: httpx2.BaseTransport) -> None:
        self._transport = transport

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._transport.handle_request(request)


class SessionClients:
    """Clients bound to one rollout by its URL and key, over the connections all rollouts share."""

    def __init__(
        self, connection: Connection, *, url: str, key: str, model: tuple[str, str], recording: Recording
    ) -> None:
        """`url`: the rollout's own, `http://host:port/r/<id>`, without a dialect's `/v1`."""
        self._connection = connection
        self._url = url
        self._key = key
        self._timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        self._recorder = Recorder(model, recording)

    def openai(self) -> AsyncOpenAI:
        """For chat completions and responses."""
        from openai import AsyncOpenAI

        url = f"{self._url}/v1"
        return AsyncOpenAI(base_url=url, api_key=self._key, timeout=self._timeout, http_client=self._http())

    def sync_openai(self) -> OpenAI:
        """The synchronous twin of `openai`."""
        from openai import OpenAI

        url = f"{self._url}/v1"
        http = self._sync_http()
        return OpenAI(base_url=url, api_key=self._key, timeout=self._timeout, http_client=http)

    def anthropic(self) -> AsyncAnthropic:
        """For messages. ConfigError where the anthropic package is not installed."""
        kind: type[AsyncAnthropic] = _anthropic().AsyncAnthropic
        return kind(base_url=self._url, auth_token=self._key, timeout=self._timeout, http_client=self._http())

    def sync_anthropic(self) -> Anthropic:
        """The synchronous twin of `anthropic`."""
        kind: type[Anthropic] = _anthropic().Anthropic
        return kind(
            base_url=self._url, auth_token=self._key, timeout=self._timeout, http_client=self._sync_http()
        )

    def _http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=_Borrowed(self._connection.transport),
            timeout=self._timeout,
            event_hooks=self._recorder.hooks(),
        )

    def _sync_http(self) -> httpx2.Client:
        return httpx2.Client(
            transport=_SyncBorrowed(self._connection.sync_transport),
            timeout=self._timeout,
            event_hooks=self._recorder.sync_hooks(),
        )


def _anthropic() -> Any:
    try:
        import anthropic
    except ModuleNotFoundError as error:
        raise ConfigError(
            "an Anthropic client needs the anthropic package",
            cause=str(error),
            hint="pip install anthropic; or give the agent session.env, and let it make its own client",
        ) from error
    return anthropic


# -- recording


class Recorder:
    """Response hooks of a client: what it is answered goes into the recording around the call."""

    def __init__(self, model: object, recording: Recording | None = None) -> None:
        """`model` names whose calls these are. `recording`: that of the client's own rollout, if it has one."""
        self._model = model
        self._own = recording

    def hooks(self) -> dict[str, list[Any]]:
        """For an asynchronous client."""
        return {"response": [self._tee_async]}

    def sync_hooks(self) -> dict[str, list[Any]]:
        """For a synchronous client."""
        return {"response": [self._tee]}

    async def _tee_async(self, response: httpx2.Response) -> None:
        answer = self._answer(response)
        if answer is not None and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _AsyncTee(response.stream, answer)

    def _tee(self, response: httpx2.Response) -> None:
        answer = self._answer(response)
        if answer is not None and isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = _Tee(response.stream, answer)

    def _answer(self, response: httpx2.Response) -> _Answer | None:
        """None for a call that nobody records."""
        recording = current_recording()
        if self._own is not None and (recording is None or recording.rollout_id != self._own.rollout_id):
            recording = self._own  # called from a thread without our context, or from another rollout's
        route = response.request.url.path.rpartition("/v1")[2]
        if recording is None or not response.is_success or response.request.method != "POST":
            return None
        if route in _ELSEWHERE:
            recording.note_elsewhere(route)
        wanted = route.endswith("/chat/completions") and recording.belongs(self._model)
        return _Answer(recording, response) if wanted else None


_ELSEWHERE = frozenset({"/responses", "/messages", "/completions"})
"""Dialects that are recorded by the server and do not fit into `messages_and_choices`."""


class _Answer:
    """One answer on its way to the agent; it counts as soon as it is whole."""

    def __init__(self, recording: Recording, response: httpx2.Response) -> None:
        self._recording = recording
        self._response = response
        self._parts: list[bytes] = []
        self._tail = b""
        self._done = False

    def feed(self, part: bytes) -> None:
        """More of the answer. SDKs stop reading at the stream's last event, so it ends there."""
        self._parts.append(part)
        seen = self._tail + part
        self._tail = seen[-len(_END) :]
        if _END in seen:
            self.end()

    def end(self) -> None:
        """The answer has been read to its end, or the reader needs no more of it."""
        if self._done:
            return
        self._done = True
        raw = b"".join(self._parts)
        coding = self._response.headers.get("content-encoding")
        if coding:
            raw = httpx2.Response(200, headers={"content-encoding": coding}, content=raw).content
        self._recording.add(self._response.request.content, raw)


_END = b"\ndata: [DONE]"
"""Inside a JSON text a line break is escaped, so this is never part of an answer."""


class _AsyncTee(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, answer: _Answer) -> None:
        self._stream = stream
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self._answer.feed(part)
            yield part
        self._answer.end()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Tee(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream, answer: _Answer) -> None:
        self._stream = stream
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._answer.feed(part)
            yield part
        self._answer.end()

    def close(self) -> None:
        self._stream.close()
