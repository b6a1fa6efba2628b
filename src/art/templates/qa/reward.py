"""What an answer is worth."""

from __future__ import annotations

ANSWERS = ("yes", "no", "maybe")


def score(answer: str, scenario: dict[str, str]) -> float:
    """1 for the right word alone, 0.5 for the right word among others, 0.1 for a wrong word that was allowed, else 0.

    The steps between teach the form first: without them a model that never answers in one word has nothing to learn from.
    """
    said = answer.strip().rstrip(".!").lower()
    if said == scenario["answer"]:
        return 1.0
    words = said.replace(",", " ").replace(".", " ").split()
    if scenario["answer"] in words and not any(
        word in words for word in ANSWERS if word != scenario["answer"]
    ):
        return 0.5
    return 0.1 if said in ANSWERS else 0.0
