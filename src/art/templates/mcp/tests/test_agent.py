from __future__ import annotations

import asyncio
from typing import Any

import art

from agent import run
from reward import score


def test_the_agent_asks_the_server_and_answers_from_it(scripted: Any) -> None:
    model = scripted(
        (r"on loan<", "no"),
        (r"Ulysses", '<tool_call>{"name": "is_on_loan", "arguments": {"title": "Ulysses"}}</tool_call>'),
    )
    agent = art.wrap(run, score)
    done = asyncio.run(agent.rollout(model, {"title": "Ulysses", "answer": "no"}))
    assert done.reward == 1.0
    assert [message["content"] for message in done.messages() if message["role"] == "tool"] == ["on loan"]
