"""POST /v1/messages and /v1/messages/count_tokens, also under /r/{rollout}/v1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art.errors import ArtError
from art.server.auth import Principal
from art.server.body import MAX_INFERENCE_BYTES, bounded_body, read_json, reading
from art.server.calls import CallPlan, CallRequest, count_prompt
from art.server.capture import Choice, Completed
from art.server.dialects.anthropic_answer import EventWriter, message
from art.server.dialects.anthropic_request import (
    MessagesRequest,
    parse_count_request,
    parse_messages_request,
)
from art.server.dialects.anthropic_thread import continued
from art.server.dialects.responses_chain import Records
from art.server.dialects.serving import call_headers, serve
from art.server.responses import error_response
from art.server.state import Gateway
from art.server.upstreams_serving import pass_on
from art.store.records import Role


def routes() -> list[Route]:
    """The routes of this dialect."""
    path = "/v1/messages"
    return [
        Route(prefix + path + suffix, endpoint, methods=["POST"])
        for prefix in ("", "/r/{rollout}")
        for suffix, endpoint in (("", messages), ("/count_tokens", count_tokens))
    ]


async def messages(request: Request) -> Response:
    """Answer a Messages request."""
    return await serve(request, MessagesDialect())


class MessagesDialect:
    """Anthropic Messages."""

    def parse(self, body: object, *, size: int) -> MessagesRequest:
        return parse_messages_request(body, size=size)

    async def resolve(self, ask: MessagesRequest, gateway: Gateway, principal: Principal) -> MessagesRequest:
        return await continued(ask, Records(gateway.store, principal))

    def whole(self, ask: MessagesRequest, done: Completed) -> dict[str, Any]:
        return message(done, show_thinking=ask.show_thinking)

    def writer(
        self, ask: MessagesRequest, plan: CallPlan, choices: Sequence[Choice], created: float
    ) -> EventWriter:
        return EventWriter(plan, choices[0], show_thinking=ask.show_thinking)


async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt would have if it were sent now, memory included. Recorded nowhere."""
    try:
        return await _count(request)
    except ArtError as error:
        return error_response(error, "anthropic")


async def _count(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    principal: Principal = request.state.principal
    principal.require(Role.INFER)
    raw = await bounded_body(request, min(gateway.settings.max_body_bytes, MAX_INFERENCE_BYTES))
    sessions = gateway.sessions
    body = await sessions.off_loop.run(len(raw), read_json, raw)
    if (upstream := gateway.upstreams.find(body)) is not None:
        return await pass_on(request, call_headers(request), upstream, body)
    asked = await sessions.off_loop.run(len(raw), _read_count, body, len(raw))
    entry, session = await sessions.look(call_headers(request), principal, asked.model)
    call = asked.settled(entry)
    digests = await sessions.off_loop.run(len(raw), call.digests)
    if session is not None:
        match = session.graph.match(digests, call.messages)
    else:
        match = sessions.known_path(principal.key_id, entry, digests, call.messages)
    with reading("the request"):
        tokens = await count_prompt(sessions, call, entry, match, digests)
    return JSONResponse({"input_tokens": tokens})


def _read_count(body: object, size: int) -> CallRequest:
    with reading("the request"):
        return parse_count_request(body, size=size)
