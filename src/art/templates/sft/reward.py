"""What an answer is worth."""

from __future__ import annotations

import re


def score(answer: str, scenario: dict[str, str]) -> float:
    """1 for the right answer in the right form, 0.3 for the right word in another form, 0.1 for the form alone, else 0."""
    said = answer.strip().lower()
    formed = re.fullmatch(r"urgent: (yes|no|maybe)", said)
    if formed:
        return 1.0 if formed[1] == scenario["urgent"] else 0.1
    return 0.3 if set(re.findall(r"yes|no|maybe", said)) == {scenario["urgent"]} else 0.0
