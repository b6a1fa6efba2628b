from __future__ import annotations

import asyncio
from typing import Any

import art

from agent import run
from reward import score


def test_the_agent_answers_and_is_judged(scripted: Any) -> None:
    model = scripted(("gills", "yes"), ("swim", "perhaps"))
    agent = art.wrap(run, score)

    def reward(question: str, answer: str) -> float:
        scenario = {"question": question, "answer": answer}
        return asyncio.run(agent.rollout(model, scenario)).reward

    assert reward("Do fish breathe with gills?", "yes") == 1.0
    assert reward("Can a stone swim?", "no") == 0.0
