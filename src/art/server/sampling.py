"""Whose sampling parameters hold, and which seed every choice gets. Pure functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from art.errors import UnsupportedOption
from art.types.policy import Sampling, SamplingParams

#: Options that change the distribution and that no engine here applies, with the values that mean "off".
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
}


@dataclass(frozen=True, slots=True)
class Override:
    """One value that the session's rule replaced."""

    name: str
    asked: object
    used: object


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """What is used, and what was asked and not followed."""

    params: SamplingParams
    overrides: list[Override] = field(default_factory=list)


def resolve_sampling(asked: Mapping[str, Any], rule: Sampling) -> ResolvedSampling:
    """The parameters of a call. `asked` holds the options that the request gave, checked for type and range.

    `training`: temperature 1, no truncation and no penalties whatever was asked. `caller`: as asked;
    UnsupportedOption for one that would have to be ignored.
    """
    kept = {name: asked[name] for name in ("max_tokens", "seed", "stop", "top_logprobs") if name in asked}
    if rule == "training":
        used: dict[str, object] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
        off: dict[str, object] = {name: values[-1] for name, values in UNSUPPORTED.items()}
        overrides = [
            Override(name, asked[name], value)
            for name, value in {**used, **off}.items()
            if name in asked and asked[name] != value and not _is_off(name, asked[name])
        ]
        return ResolvedSampling(SamplingParams(**{**used, **kept}), overrides)
    for name in UNSUPPORTED:
        if name in asked and not _is_off(name, asked[name]):
            raise UnsupportedOption(
                f"`{name}` is not supported",
                cause="the embedded engine samples by temperature, top_p and top_k only",
                hint=f"leave `{name}` out; in sessions with sampling='training' it is overridden",
            )
    own = {name: asked[name] for name in ("temperature", "top_p", "top_k") if name in asked}
    return ResolvedSampling(SamplingParams(**{**own, **kept}))


def _is_off(name: str, value: object) -> bool:
    return value in UNSUPPORTED.get(name, ())


@dataclass(frozen=True, slots=True)
class SeedSpace:
    """What makes one rollout's draws its own: the same values draw the same, others independently."""

    run_seed: int
    scenario: str
    """The scenario's id, or the rollout's where there is none."""
    member: int
    step: int
    repeat: int
    """Number of earlier rollouts with the same values, so that no two rollouts share their draws. One that ART or the
    machine failed does not count: what is run in its place draws what it would have drawn."""
    key: str = ""
    """What the client calls the place of this rollout in its run, where scenario and member do not say it."""


def seed_identity(*, run_seed: int, scenario: str | None, member: int, step: int, key: str) -> str:
    """Equal for rollouts whose draws only `repeat` tells apart; "" where nothing but its own id says which it is."""
    if scenario is None and not key:
        return ""
    return json.dumps([run_seed, scenario, member, step, key])


def call_seed(space: SeedSpace, call: int, choice: int, asked: int | None, rule: Sampling) -> int:
    """The 63-bit seed of one choice.

    A caller's seed decides alone where the caller's sampling holds; in training it is mixed with the
    rollout's, because an agent that always sends the same seed would make a group's members equal.
    """
    if asked is not None and rule == "caller":
        return _hash("caller", asked, choice)
    parts = (space.run_seed, space.scenario, space.member, space.step, space.repeat, space.key)
    return _hash("rollout", *parts, call, choice, asked)


def _hash(*parts: object) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
