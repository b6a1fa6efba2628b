"""Rewards beyond a function of one's own: none in this release."""

from __future__ import annotations

from typing import Any

from art.missing import REWARDS, explain


def __getattr__(name: str) -> Any:
    raise AttributeError(
        explain("art.rewards", name, REWARDS) or f"module {__name__!r} has no attribute {name!r}"
    )
