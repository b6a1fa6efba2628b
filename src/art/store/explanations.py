"""What a judge said of a rollout, as it was logged with its trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def explanation_of(logs: Sequence[str], metadata: Mapping[str, object]) -> str:
    """Metadata named `...explanation`, else the log line that begins so; "" where there is neither."""
    named = [
        value
        for name, value in metadata.items()
        if name.endswith("explanation") and isinstance(value, str) and value
    ]
    if named:
        return "\n\n".join(named)
    for line in logs:
        head, colon, rest = line.partition(":")
        if colon and head.lower().endswith("explanation"):
            return rest.strip()
    return ""
