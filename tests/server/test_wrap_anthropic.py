"""Agents that use Anthropic's SDK, wrapped as they are: given a client, or with one of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from chat_kit import Served

import art


@pytest.fixture(scope="module")
def model(served: Served) -> Iterator[art.TrainableModel[Any, Any]]:
    made: art.TrainableModel[Any, Any] = art.TrainableModel(
        name="alpha", project="tests", base_model=served.base_model
    )
    with art.RemoteBackend(served.server.url, served.server.admin_key) as backend:
        made.register(backend)
        yield made


def ask(client: anthropic.Anthropic, task: str) -> str:
    answer = client.messages.create(
        model="claude-sonnet", max_tokens=20, messages=[{"role": "user", "content": task}]
    )
    return "".join(block.text for block in answer.content if block.type == "text")


def given(task: str, client: anthropic.Anthropic) -> str:
    return ask(client, task)


async def given_async(task: str, client: anthropic.AsyncAnthropic) -> str:
    answer = await client.messages.create(
        model="claude-sonnet", max_tokens=20, messages=[{"role": "user", "content": task}]
    )
    return str(answer.content[0].text)  # type: ignore[union-attr]


def from_the_environment() -> Any:
    """A factory: its client reads ANTHROPIC_BASE_URL and the key by itself."""
    client = anthropic.Anthropic()
    return lambda task: ask(client, task)


class Held:
    def __init__(self, client: anthropic.Anthropic) -> None:
        self.client = client

    def run(self, task: str) -> str:
        return ask(self.client, task)


@pytest.mark.parametrize("agent", [given, given_async, from_the_environment, "held"])
def test_an_agent_on_anthropics_sdk_is_one_rollout(
    served: Served, model: art.TrainableModel[Any, Any], agent: Any
) -> None:
    held = Held(anthropic.Anthropic(base_url=served.server.url, api_key=served.server.admin_key))
    wrapped = art.wrap(held if agent == "held" else agent, lambda said: float(len(said) > 0))
    trajectory = asyncio.run(wrapped.rollout(model, "a fruit"))
    (call,) = served.rollout(str(trajectory.rollout_id))["calls"]
    assert call["dialect"].startswith("anthropic")
    assert trajectory.reward == 1.0
    assert [message["role"] for message in trajectory.messages()] == ["user", "assistant"]
    assert str(held.client.base_url).rstrip("/") == served.server.url
