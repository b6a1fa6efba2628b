"""Log lines pass the same patterns as everything else that is kept: an error may quote what an agent said."""

from __future__ import annotations

import logging
from collections.abc import Callable

from art.config.server import ServerConfig
from art.store.rules import Rules, redaction_of


class RedactingFormatter(logging.Formatter):
    """Formats a record whole, traceback included, and takes the secrets out of the result."""

    def __init__(self, format: str, redact: Callable[[str], str]) -> None:
        super().__init__(format)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(super().format(record))


def formatter(format: str, settings: ServerConfig) -> logging.Formatter:
    """For the server's handlers. ConfigError where an own function cannot be imported."""
    redact = redaction_of(settings.content_rule(), settings.project_rules())
    return (
        RedactingFormatter(format, redact.log_line)
        if isinstance(redact, Rules)
        else logging.Formatter(format)
    )
