from __future__ import annotations

from agent import Result
from reward import score

ULYSSES = {"title": "Ulysses", "answer": "no"}
ASKED = [("is_on_loan", {"title": "Ulysses"})]


def test_half_for_asking_and_half_for_the_answer() -> None:
    assert score(Result("no", ASKED), ULYSSES) == 1.0
    assert score(Result("No.", []), ULYSSES) == 0.5
    assert score(Result("yes", ASKED), ULYSSES) == 0.6
    assert score(Result("", [("find_book", {"title": "Ulysses"})]), ULYSSES) == 0.0
