"""What a run is worth: half for asking the right tool, half for the right answer."""

from __future__ import annotations

from agent import Result


def score(result: Result, scenario: dict[str, str]) -> float:
    """0.5 for asking whether the book is on loan; 0.5 for the right word, 0.1 for the other one, which is at least an answer."""
    said = result.answer.strip().rstrip(".!").lower()
    asked = 0.5 if ("is_on_loan", {"title": scenario["title"]}) in result.calls else 0.0
    answered = 0.5 if said == scenario["answer"] else 0.1 if said in ("yes", "no") else 0.0
    return asked + answered
