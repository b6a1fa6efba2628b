from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent import INSTRUCTION
from reward import score


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("urgent: yes", 1.0),
        ("Urgent: yes ", 1.0),
        ("urgent: no", 0.1),
        ("yes", 0.3),
        ("yes or no", 0.0),
        ("", 0.0),
    ],
)
def test_form_and_answer_both_count(answer: str, worth: float) -> None:
    assert score(answer, {"urgent": "yes"}) == worth


def test_the_demonstrations_are_what_the_agent_asks_and_the_reward_wants() -> None:
    file = Path(__file__).parent.parent / "demonstrations.jsonl"
    for line in file.read_text().splitlines():
        system, ticket, answer = json.loads(line)["messages"]
        assert system == {"role": "system", "content": INSTRUCTION}
        assert ticket["role"] == "user"
        assert score(answer["content"], {"urgent": answer["content"].removeprefix("urgent: ")}) == 1.0
