from __future__ import annotations

from agent import Result
from reward import score

BERGEN = {"city": "Bergen"}


def test_half_for_looking_and_half_for_the_answer() -> None:
    assert score(Result("yes", ["Bergen"]), BERGEN) == 1.0
    assert score(Result("Yes.", []), BERGEN) == 0.5
    assert score(Result("no", ["Bergen"]), BERGEN) == 0.6
    assert score(Result("yes", ["Oslo"]), BERGEN) == 0.5
    assert score(Result("It rains a lot", ["Oslo"]), BERGEN) == 0.0
