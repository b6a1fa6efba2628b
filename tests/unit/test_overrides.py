"""What a session served otherwise than asked is told once, in words."""

from __future__ import annotations

from typing import Any

from art.rollouts.overrides import is_name_of, overrides
from art.types.policy import SamplingParams
from art.types.tokens import CallRecord


def call(asked: dict[str, Any], **used: Any) -> CallRecord:
    return CallRecord(
        call_id="c",
        rollout_id="r",
        version="p/m@3",
        sampling_asked={"model": "p/m", **asked},
        sampling_used=SamplingParams(**used),
    )


def test_an_unchanged_agent_is_told_what_it_did_not_get() -> None:
    lines = overrides([call({"model": "gpt-4o", "temperature": 0, "top_p": 0.9})], model="p/m")
    assert [line.split(";")[0] for line in lines] == [
        "temperature is 1.0 in training, not the agent's",
        "top_p is 1.0 in training, not the agent's",
        "'gpt-4o' is served by p/m",
    ]


def test_each_option_is_told_once_whatever_its_values() -> None:
    calls = [call({"temperature": value}) for value in (0, 0.2, 0.7)]
    assert len(overrides(calls, model="p/m")) == 1


def test_what_was_served_as_asked_is_not_told() -> None:
    calls = [
        call({"temperature": 0.3, "top_p": 0.5}, temperature=0.3, top_p=0.5),
        call({"temperature": None}),
    ]
    assert overrides(calls, model="p/m") == []


def test_every_name_of_a_model_means_it() -> None:
    assert all(is_name_of(name, "p/m@3") for name in ("m", "p/m", "m@3", "p/m@3"))
    assert not any(is_name_of(name, "p/m@3") for name in ("gpt-4o", "q/m", "mm"))
