"""The one hook that every stored text and token array passes."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np

J = TypeVar("J")


class Redaction(Protocol):
    """Changes content before it is written. Ids, counts, rewards and times are not content."""

    def text(self, value: Any) -> Any:
        """`value` is JSON-like data that holds text: messages, tools, metadata, logs."""
        ...

    def tokens(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of one call's blob."""
        ...


class KeepEverything:
    """Stores content as it is."""

    def text(self, value: J) -> J:
        return value

    def tokens(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return arrays
