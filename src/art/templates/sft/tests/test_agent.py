from __future__ import annotations

import asyncio
from typing import Any

import art

from agent import run
from reward import score


def test_the_agent_answers_and_is_judged(scripted: Any) -> None:
    model = scripted(("log in", "urgent: yes"))
    agent = art.wrap(run, score)
    done = asyncio.run(agent.rollout(model, {"ticket": "Nobody can log in.", "urgent": "yes"}))
    assert done.reward == 1.0
