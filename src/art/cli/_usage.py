"""What is wrong with a command line itself, and not with what it asks for."""

from __future__ import annotations

from art.errors import ConfigError


class WrongUsage(ConfigError):
    """Options that contradict each other, are missing or cannot be read. Exit status 2, as for an unknown option."""

    code = "usage"
