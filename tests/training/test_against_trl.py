"""Advantages, losses, penalties, corrections and gradients against TRL's, on random inputs in float64.

tests/data/trl/cases.json holds what TRL made of them; `make test-trl` asks TRL itself, for the same cases and for new ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from trl_kit import ours, theirs

STORED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "trl" / "cases.json").read_text())
CASES: list[dict[str, Any]] = STORED["cases"]
LONGEST: int = STORED["max_completion_length"]

pytestmark = pytest.mark.usefixtures("one_thread")


def name_of(index: int) -> str:
    """The case's kind, and which of its kind it is."""
    kind = CASES[index]["kind"]
    return f"{kind} {sum(case['kind'] == kind for case in CASES[:index])}"


@pytest.mark.parametrize("index", range(len(CASES)), ids=name_of)
def test_the_same_as_trl(index: int) -> None:
    case = CASES[index]
    expected = dict(theirs(case).figures())
    found = dict(ours(case, max_completion_length=LONGEST).figures())
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-11, atol=1e-12, msg=f"{name} differs")


def test_the_stored_cases_reach_every_branch() -> None:
    """Clips that hold on either side, tokens the corrections change, groups without spread, tokens left out."""
    assert STORED["versions"]["trl"] == "1.16.0"
    assert any(not all(row) for case in CASES for row in case["inputs"]["trained"])
    assert any(len(set(case["inputs"]["rewards"][-2:])) == 1 for case in CASES)
    for kind in ("grpo", "gspo", "grpo, masked by token", "grpo, masked by sequence"):
        gradients = [theirs(case).gradient_N for case in CASES if case["kind"] == kind]
        shares = [float((gradient == 0).double().mean()) for gradient in gradients if gradient is not None]
        assert any(0 < share < 1 for share in shares), kind


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("grpo", {"loss_aggregation": "token"}),
        ("grpo", {"epsilon_high": 0.1}),
        ("grpo", {"advantages": "dr_grpo"}),
        ("gspo", {"loss_fn": "ppo", "importance_sampling_level": "token"}),
        ("cispo", {"epsilon_high": 4.0}),
        ("grpo, kl", {"kl_estimator": "k2"}),
        ("dapo, entropy", {"entropy_coef": 0.05}),
        ("grpo, truncated by token", {"truncated_importance_sampling": 3.0}),
        ("grpo, truncated by sequence", {"importance_correction_level": "token"}),
        ("grpo, masked by token", {"importance_correction": "truncate"}),
    ],
)
def test_another_option_gives_another_result(kind: str, changed: dict[str, Any]) -> None:
    """The comparison would notice: an option that means something else does not agree with TRL."""
    agree = []
    for case in CASES:
        if case["kind"] == kind:
            found = dict(ours(case, max_completion_length=LONGEST, **changed).figures())
            expected = theirs(case).figures()
            agree += [torch.allclose(found[name], value, rtol=1e-6, atol=1e-9) for name, value in expected]
    assert not all(agree)
