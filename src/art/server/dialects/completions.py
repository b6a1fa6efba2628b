"""POST /v1/completions, also under /r/{rollout}/v1: OpenAI's text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from art.server.auth import Principal
from art.server.calls import CallPlan
from art.server.capture import Choice, Completed
from art.server.dialects.completions_answer import TextWriter, text_completion
from art.server.dialects.completions_request import CompletionsRequest, parse_completions_request
from art.server.dialects.serving import serve
from art.server.state import Gateway


def routes() -> list[Route]:
    """The routes of this dialect."""
    path = "/v1/completions"
    return [
        Route(path, completions, methods=["POST"]),
        Route("/r/{rollout}" + path, completions, methods=["POST"]),
    ]


async def completions(request: Request) -> Response:
    """Answer a text-completions request."""
    return await serve(request, CompletionsDialect())


class CompletionsDialect:
    """OpenAI text completions."""

    def parse(self, body: object, *, size: int) -> CompletionsRequest:
        return parse_completions_request(body, size=size)

    async def resolve(
        self, ask: CompletionsRequest, gateway: Gateway, principal: Principal
    ) -> CompletionsRequest:
        return ask  # the prompt is in the request

    def whole(self, ask: CompletionsRequest, done: Completed) -> dict[str, Any]:
        return text_completion(done, with_logprobs=ask.logprobs)

    def writer(
        self, ask: CompletionsRequest, plan: CallPlan, choices: Sequence[Choice], created: float
    ) -> TextWriter:
        return TextWriter(plan, choices, created, include_usage=ask.include_usage, with_logprobs=ask.logprobs)
