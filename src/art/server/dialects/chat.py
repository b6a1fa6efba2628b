"""POST /v1/chat/completions, also under /r/{rollout}/v1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from art.server.auth import Principal
from art.server.calls import CallPlan
from art.server.capture import Choice, Completed
from art.server.dialects.chat_answer import ChunkWriter, completion
from art.server.dialects.chat_request import ChatRequest, parse_chat_request
from art.server.dialects.serving import serve
from art.server.state import Gateway


def routes() -> list[Route]:
    """The routes of this dialect."""
    path = "/v1/chat/completions"
    return [
        Route(path, chat_completions, methods=["POST"]),
        Route("/r/{rollout}" + path, chat_completions, methods=["POST"]),
    ]


async def chat_completions(request: Request) -> Response:
    """Answer a chat request."""
    return await serve(request, ChatDialect())


class ChatDialect:
    """OpenAI Chat Completions."""

    def parse(self, body: object, *, size: int) -> ChatRequest:
        return parse_chat_request(body, size=size)

    async def resolve(self, ask: ChatRequest, gateway: Gateway, principal: Principal) -> ChatRequest:
        return ask  # the whole history is in the request

    def whole(self, ask: ChatRequest, done: Completed) -> dict[str, Any]:
        return completion(done)

    def writer(
        self, ask: ChatRequest, plan: CallPlan, choices: Sequence[Choice], created: float
    ) -> ChunkWriter:
        return ChunkWriter(plan, choices, created, include_usage=ask.include_usage)
