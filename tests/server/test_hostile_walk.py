"""All that a hostile client does, in any order, in one conversation.

Two walks a dialect are tried in every run of the tests, always the same ones. `make hostile` tries a hundred, from another seed
each time: `make hostile WALKS=500 SEED=1` says how many and which.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
from hostile_dialects import DIALECTS, Anthropic
from hostile_kit import Agent, Watched, everything
from hostile_walk import Seen, Walk
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

WALKS = int(os.environ.get("ART_HOSTILE_WALKS", "2"))
"""Per dialect."""
SEED = int(os.environ.get("ART_HOSTILE_SEED", "0"))


@pytest.mark.parametrize("name", sorted(DIALECTS))
@pytest.mark.timeout(300 + 30 * WALKS)
def test_whatever_order_it_comes_in(watched: Watched, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    walks: list[Seen] = []

    @hypothesis.seed(SEED)
    @settings(
        max_examples=WALKS, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        steps=st.lists(st.sampled_from(Walk.STEPS), min_size=4, max_size=12),
        seed=st.integers(0, 2**32 - 1),
        hidden=st.booleans(),
    )
    def walk(steps: list[str], seed: int, hidden: bool) -> None:
        dialect = Anthropic(hidden=hidden) if name == "anthropic" else DIALECTS[name]
        print(f"{name}: seed={seed}, hidden={hidden}, steps={steps}")  # shown where it fails
        opened = watched.open(scenario_id=f"walk {name} {seed} {steps}")
        walks.append(Walk(watched, Agent(opened, dialect, everything(name), seed=seed)).run(steps))

    walk()
    total = sum(walks, Seen())
    with capsys.disabled():
        print(
            f"\n{name}, seed {SEED}: {len(walks)} walks of {total.calls} calls,"
            f" {total.known} of {total.later} later turns served from memory"
        )
