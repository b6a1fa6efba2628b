"""Whose sampling holds, and whose draws are whose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from art.errors import UnsupportedOption
from art.server.sampling import SeedSpace, call_seed, resolve_sampling, seed_identity
from art.server.session import Session
from art.store.records import RolloutRow

ASKED = {
    "temperature": 0.0,
    "top_p": 0.9,
    "top_k": 5,
    "seed": 42,
    "stop": ("x",),
    "max_tokens": 9,
    "min_p": 0.1,
}
SPACE = SeedSpace(run_seed=1, scenario="s", member=0, step=3, repeat=0)


def test_training_replaces_the_distribution_and_keeps_the_rest() -> None:
    resolved = resolve_sampling(ASKED, "training")
    params = resolved.params
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 0)
    assert (params.seed, params.stop, params.max_tokens) == (42, ("x",), 9)
    assert {item.name: (item.asked, item.used) for item in resolved.overrides} == {
        "temperature": (0.0, 1.0),
        "top_p": (0.9, 1.0),
        "top_k": (5, 0),
        "min_p": (0.1, 0),
    }


def test_values_that_change_nothing_are_no_overrides() -> None:
    asked = {
        "temperature": 1.0,
        "top_p": 1.0,
        "frequency_penalty": 0,
        "repetition_penalty": 1.0,
        "logit_bias": {},
    }
    assert resolve_sampling(asked, "training").overrides == []
    assert resolve_sampling(asked, "caller").params.temperature == 1.0


def test_the_caller_gets_what_was_asked_or_a_refusal() -> None:
    asked = {name: value for name, value in ASKED.items() if name != "min_p"}
    params = resolve_sampling(asked, "caller").params
    assert (params.temperature, params.top_p, params.top_k) == (0.0, 0.9, 5)
    with pytest.raises(UnsupportedOption, match="min_p"):
        resolve_sampling(ASKED, "caller")


def test_everything_that_names_a_choice_changes_its_seed() -> None:
    base = call_seed(SPACE, 0, 0, None, "training")
    assert base == call_seed(SPACE, 0, 0, None, "training")
    assert 0 <= base < 2**63
    others = [
        replace(SPACE, run_seed=2),
        replace(SPACE, scenario="t"),
        replace(SPACE, member=1),
        replace(SPACE, step=4),
        replace(SPACE, repeat=1),
        replace(SPACE, key="2-0"),
    ]
    seeds = [call_seed(space, 0, 0, None, "training") for space in others]
    seeds += [call_seed(SPACE, 1, 0, None, "training"), call_seed(SPACE, 0, 1, None, "training")]
    assert len({base, *seeds}) == len(seeds) + 1


def test_an_agents_fixed_seed_decides_alone_only_where_the_caller_rules() -> None:
    other = replace(SPACE, member=1)
    assert call_seed(SPACE, 0, 0, 42, "training") != call_seed(other, 0, 0, 42, "training")
    assert call_seed(SPACE, 0, 0, 42, "training") != call_seed(SPACE, 0, 0, 43, "training")
    assert call_seed(SPACE, 0, 0, 42, "caller") == call_seed(other, 7, 0, 42, "caller")
    assert call_seed(SPACE, 0, 0, 42, "caller") != call_seed(SPACE, 0, 1, 42, "caller")


def test_a_rollout_is_identified_by_what_its_client_says_of_it() -> None:
    given = {"run_seed": 1, "scenario": "s", "member": 0, "step": 3, "key": "2-0"}
    others = [{**given, name: other} for name, other in [("run_seed", 2), ("scenario", "t"), ("member", 1)]]
    others += [{**given, "step": 4}, {**given, "key": "2-1"}, {**given, "scenario": None}]
    known = [seed_identity(**one) for one in (given, *others)]  # type: ignore[arg-type]
    assert len(set(known)) == len(known)
    assert seed_identity(**{**given, "scenario": None, "key": ""}) == ""  # type: ignore[arg-type]


def test_a_call_that_was_not_answered_is_drawn_again() -> None:
    row = RolloutRow(rollout_id="r", project="p", model="m", step=0)
    session = Session(row=row, entry=None, aliases=False, seeds=SPACE)  # type: ignore[arg-type]
    assert [session.take_draw() for _ in range(4)] == [0, 1, 2, 3]
    session.give_back(2)
    session.give_back(1)
    assert [session.take_draw() for _ in range(3)] == [1, 2, 4]
