"""POST /v1/chat/completions, also under /r/{rollout}/v1."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art.errors import ArtError, Conflict, DeadlineExceeded, InvalidInput
from art.server.auth import Principal
from art.server.body import MAX_INFERENCE_BYTES, bounded_body, read_json, reading, whole_number
from art.server.calls import plan_call
from art.server.capture import Completed
from art.server.dialects.chat_answer import ChunkWriter, completion, replayed
from art.server.dialects.chat_request import ChatRequest, parse_chat_request
from art.server.generation import CallRun, Delta
from art.server.responses import error_body, error_response
from art.server.session import CallHeaders, Session
from art.server.state import Gateway
from art.server.streaming import ClientGone, EventStream, answer_or_gone, sse
from art.store.records import Role

HEAD_START_SECONDS = 5.0
"""How long a stream's status waits for the first token: an error until then is still a proper HTTP error."""
MAX_ANSWERS = 256
"""Answers a session keeps for repeated Idempotency-Keys."""


def routes() -> list[Route]:
    """The routes of this dialect."""
    path = "/v1/chat/completions"
    return [
        Route(path, chat_completions, methods=["POST"]),
        Route("/r/{rollout}" + path, chat_completions, methods=["POST"]),
    ]


async def chat_completions(request: Request) -> Response:
    """Answer a chat request; errors in OpenAI's shape."""
    try:
        return await _serve(request)
    except ArtError as error:
        return error_response(error, openai=True)
    except ClientGone:
        return Response(status_code=499)  # nobody reads it; nginx's number for it


async def _serve(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    principal: Principal = request.state.principal
    principal.require(Role.INFER)
    raw = await bounded_body(request, min(gateway.settings.max_body_bytes, MAX_INFERENCE_BYTES))
    chat, digests = await gateway.sessions.off_loop.run(len(raw), _read, raw)
    headers = call_headers(request)
    located = await gateway.sessions.locate(
        headers, principal, chat.call.model, digests=digests, messages=chat.call.messages
    )
    answer = _Answer(located.session, request.headers.get("idempotency-key"), raw)
    with located.session.inside():
        # A session's calls are planned and started one by one, so that they keep their order.
        async with located.session.planning:
            earlier = answer.earlier()
            if earlier is None:
                with reading("the request"):
                    plan = await plan_call(gateway.sessions, chat.call, located, digests, agent=headers.agent)
                run = CallRun(plan, versions=gateway.versions, sessions=gateway.sessions, store=gateway.store)
                answer.keep(run.start())
    if earlier is not None:
        return await _repeat(gateway, request, chat, earlier)
    if chat.stream:
        return await _stream(request, run, chat)
    try:
        return JSONResponse(completion(await answer_or_gone(request, run.result())))
    except (ClientGone, asyncio.CancelledError):
        await run.cancel()
        raise


def _read(raw: bytes) -> tuple[ChatRequest, list[str]]:
    """The parsed request, and the digests of its history."""
    body = read_json(raw)
    with reading("the request"):
        chat = parse_chat_request(body, size=len(raw))
        return chat, chat.call.digests()


def call_headers(request: Request) -> CallHeaders:
    """What URL and headers say about the rollout. InvalidInput when the member is no number."""
    given = request.headers
    text = given.get("x-art-member", "0")
    member = whole_number(text)
    if member is None:
        raise InvalidInput(
            f"the header X-ART-Member is {text[:80]!r}", hint="a number, 0 for the first member"
        )
    return CallHeaders(
        url_rollout=request.path_params.get("rollout"),
        rollout=given.get("x-art-rollout"),
        project=given.get("x-art-project"),
        scenario=given.get("x-art-scenario"),
        group=given.get("x-art-group"),
        member=member,
        agent=given.get("x-art-agent"),
    )


async def _stream(request: Request, run: CallRun, chat: ChatRequest) -> Response:
    """Stream a running call. An error before the first token is answered as one."""
    deltas = run.deltas()
    first = asyncio.ensure_future(anext(deltas, None))
    try:
        await answer_or_gone(request, _head_start(first))
        if first.done() and first.result() is None:
            await run.result()  # raises what ended the call before it said anything
    except (ClientGone, asyncio.CancelledError):
        first.cancel()
        await run.cancel()
        raise
    writer = ChunkWriter(run.plan, run.choices, run.times.started)

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in writer.opening():
            yield chunk
        try:
            delta = await first
            while delta is not None:
                for chunk in writer.delta(delta):
                    yield chunk
                delta = await anext(deltas, None)
            await run.result()
        except ArtError as error:
            yield sse(error_body(error, openai=True))
            return
        for chunk in writer.closing(chat.include_usage):
            yield chunk

    return EventStream(chunks(), on_gone=run.cancel)


async def _head_start(first: asyncio.Future[Delta | None]) -> None:
    await asyncio.wait([first], timeout=HEAD_START_SECONDS)


async def _repeat(
    gateway: Gateway, request: Request, chat: ChatRequest, earlier: asyncio.Future[Completed]
) -> Response:
    """Answer with what the same request got before; waits while that one still runs."""

    async def wait() -> Completed:
        async with asyncio.timeout(gateway.settings.call_seconds):
            return await asyncio.shield(earlier)

    try:
        done = await answer_or_gone(request, wait())
    except TimeoutError:
        raise DeadlineExceeded("the first request with this Idempotency-Key is still running") from None
    if not chat.stream:
        return JSONResponse(completion(done))
    writer = ChunkWriter(done.plan, done.choices, done.created)

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in writer.opening():
            yield chunk
        async for delta in replayed(done):
            for chunk in writer.delta(delta):
                yield chunk
        for chunk in writer.closing(chat.include_usage):
            yield chunk

    async def nothing() -> None:
        return None

    return EventStream(chunks(), on_gone=nothing)


class _Answer:
    """The place of one request's answer among its session's, by Idempotency-Key."""

    def __init__(self, session: Session, key: str | None, raw: bytes) -> None:
        # Without an owner there is no session that both requests could be known to belong to.
        self._key = None if session.row.implicit else key
        self._answers = session.answers
        self._digest = hashlib.sha256(raw).hexdigest()

    def earlier(self) -> asyncio.Future[Completed] | None:
        """The answer to the same request. Conflict when the key came with another one."""
        if self._key is None or self._key not in self._answers:
            return None
        digest, answer = self._answers[self._key]
        if digest != self._digest:
            raise Conflict(
                f"the Idempotency-Key {self._key!r} was used for another request",
                hint="a key belongs to one request; make a new one for each",
            )
        return answer

    def keep(self, run: CallRun) -> None:
        """Remember the answer once it is whole; one that failed is forgotten, so that it can be tried again."""
        if self._key is None:
            return
        key, answers = self._key, self._answers
        answer: asyncio.Future[Completed] = asyncio.ensure_future(run.result())
        while len(answers) >= MAX_ANSWERS:
            del answers[next(iter(answers))]
        answers[key] = (self._digest, answer)

        def ended(task: asyncio.Future[Completed]) -> None:
            if (task.cancelled() or task.exception() is not None) and answers.get(key, ("", None))[1] is task:
                with contextlib.suppress(KeyError):
                    del answers[key]

        answer.add_done_callback(ended)
