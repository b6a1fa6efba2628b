"""The installed version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "agent-reinforcement-trainer"


def package_version() -> str:
    """As the distribution's metadata says; "unknown" in a source tree that was never installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
