from __future__ import annotations

import pytest

from reward import score


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("yes", 1.0),
        (" Yes.", 1.0),
        ("I think yes", 0.5),
        ("yes or no", 0.0),
        ("no", 0.1),
        ("", 0.0),
        ("It is late.", 0.0),
    ],
)
def test_the_right_word_alone_is_worth_most(answer: str, worth: float) -> None:
    assert score(answer, {"answer": "yes"}) == worth
