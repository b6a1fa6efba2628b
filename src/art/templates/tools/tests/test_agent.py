from __future__ import annotations

import asyncio
from typing import Any

import art

from agent import run
from reward import score


def test_the_agent_calls_the_tool_and_answers_from_it(scripted: Any) -> None:
    model = scripted(
        (r"rainy", "yes"),
        (r"Bergen", '<tool_call>{"name": "get_weather", "arguments": {"city": "Bergen"}}</tool_call>'),
        default="no",
    )
    agent = art.wrap(run, score)
    looked = asyncio.run(agent.rollout(model, {"city": "Bergen"}))
    assert looked.reward == 1.0
    assert [message["role"] for message in looked.messages()][-3:] == ["assistant", "tool", "assistant"]
    guessed = asyncio.run(agent.rollout(model, {"city": "Oslo"}))
    assert guessed.reward == 0.5
