"""What a run is worth: half for looking at the right place, half for the right answer."""

from __future__ import annotations

from agent import Result
from weather import WEATHER


def score(result: Result, scenario: dict[str, str]) -> float:
    """0.5 for looking the city up; 0.5 for the right word, 0.1 for the other one, which is at least an answer.

    What is right is taken from the world, not from what the model says of itself.
    """
    right = "yes" if WEATHER[scenario["city"]] == "rainy" else "no"
    said = result.answer.strip().rstrip(".!").lower()
    looked = 0.5 if scenario["city"] in result.cities else 0.0
    answered = 0.5 if said == right else 0.1 if said in ("yes", "no") else 0.0
    return looked + answered
