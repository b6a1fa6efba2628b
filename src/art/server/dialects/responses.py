"""POST /v1/responses and GET /v1/responses/{id}, also under /r/{rollout}/v1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art.errors import ArtError, UnsupportedOption
from art.server.auth import Principal
from art.server.calls import CallPlan
from art.server.capture import Choice, Completed
from art.server.dialects.responses_answer import Answer, Head, response, token_rows
from art.server.dialects.responses_chain import Recorded, Records, resolved
from art.server.dialects.responses_request import (
    INCLUDES,
    LOGPROBS,
    ResponsesRequest,
    parse_responses_request,
)
from art.server.dialects.responses_stream import EventWriter
from art.server.dialects.serving import serve
from art.server.responses import error_response
from art.server.state import Gateway
from art.store.records import Role


def routes() -> list[Route]:
    """The routes of this dialect."""
    path = "/v1/responses"
    one = path + "/{response_id}"
    return [
        Route(path, create_response, methods=["POST"]),
        Route("/r/{rollout}" + path, create_response, methods=["POST"]),
        Route(one, get_response, methods=["GET"]),
        Route("/r/{rollout}" + one, get_response, methods=["GET"]),
    ]


async def create_response(request: Request) -> Response:
    """Answer a request."""
    return await serve(request, ResponsesDialect())


class ResponsesDialect:
    """OpenAI Responses."""

    def parse(self, body: object, *, size: int) -> ResponsesRequest:
        return parse_responses_request(body, size=size)

    async def resolve(
        self, ask: ResponsesRequest, gateway: Gateway, principal: Principal
    ) -> ResponsesRequest:
        return await resolved(ask, Records(gateway.store, principal))

    def whole(self, ask: ResponsesRequest, done: Completed) -> dict[str, Any]:
        head = Head.planned(done.plan, done.created)
        return response(head, Answer.of(done.plan, done.choices[0], ask.include), ask.include)

    def writer(
        self, ask: ResponsesRequest, plan: CallPlan, choices: Sequence[Choice], created: float
    ) -> EventWriter:
        return EventWriter(plan, choices[0], created, ask.include)


async def get_response(request: Request) -> Response:
    """A stored response. NotFound for one that does not exist or that the key may not see."""
    try:
        return JSONResponse(await _stored(request))
    except ArtError as error:
        return error_response(error, "openai")


async def _stored(request: Request) -> dict[str, Any]:
    gateway: Gateway = request.app.state.gateway
    principal: Principal = request.state.principal
    principal.require(Role.INFER)
    rollout_id = request.path_params.get("rollout")
    if rollout_id is not None:
        principal.require_rollout(rollout_id)
        principal = Principal(principal.key_id, principal.role, principal.project, rollout_id)
    records = Records(gateway.store, principal)
    recorded = await records.response(request.path_params["response_id"])
    include = _included(request)
    instructions, _ = await records.history(recorded, whole=False)
    head = Head.recorded(recorded.call, recorded.text, instructions)
    return response(head, await _answer(gateway, recorded, include), include)


def _included(request: Request) -> frozenset[str]:
    """What the query asks for beyond the response. UnsupportedOption for what a stored response does not have."""
    query = request.query_params
    if query.get("stream", "false") != "false":
        raise UnsupportedOption("`stream` of a stored response is not supported", hint="leave it out")
    names = [*query.getlist("include"), *query.getlist("include[]")]
    for name in names:
        if name not in INCLUDES:
            raise UnsupportedOption(
                f"`include` of {name[:80]!r} is not supported",
                hint=f"possible: {', '.join(sorted(INCLUDES))}",
            )
    return frozenset(names)


async def _answer(gateway: Gateway, recorded: Recorded, include: frozenset[str]) -> Answer:
    """The answer of a recorded call."""
    call, text = recorded.call, recorded.text
    arrays = (
        {} if call.blob is None else await gateway.store.read_arrays(call.blob)
    )  # deleted once they were trained
    token_ids = [int(token) for token in arrays.get("c0.token_ids", ())]
    rows = []
    if LOGPROBS in include and arrays:
        entry, _ = gateway.versions.find(call.version)
        logprobs = [float(value) for value in arrays["c0.logprobs"]]
        rows = token_rows(entry.renderer.tokenizer, token_ids, logprobs)
    return Answer(
        runs=recorded.runs,
        finish_reason=call.choices[0].finish_reason,
        prompt_token_ids=[int(token) for token in arrays.get("prompt_token_ids", ())],
        token_ids=token_ids,
        rows=rows,
        cached_tokens=text.cached_tokens,
        finished=call.finished_at,
    )
