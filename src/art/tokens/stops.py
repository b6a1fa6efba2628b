"""Stop strings, found across the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Text in, text out up to the first stop string.

    The longest end of the text that could still become a stop string is held back, so that no part of one
    is ever given out.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found."""

    def feed(self, text: str) -> str:
        """The text that is certainly before any stop string; nothing more once one was found."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.matched = min(found, key=lambda hit: (hit[0], -len(hit[1])))
            self._held = ""
            return text[:at]
        keep = self._unfinished(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, at the end of the completion."""
        held, self._held = self._held, ""
        return held

    def _unfinished(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
