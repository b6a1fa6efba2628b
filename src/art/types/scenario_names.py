"""What a scenario is called: by its own id, else by a digest of its content, which a person is shown as words."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

DIGITS = 16
"""Of a digest: 64 bits, so that two scenarios of a run do not share one."""
LONGEST = 60
"""Characters of a label: what a column of a table has room for."""
_DIGEST = re.compile(f"[0-9a-f]{{{DIGITS}}}")


def digest(scenario: Any) -> str:
    """Of a scenario without an id of its own: the same for the same content."""
    text = json.dumps(scenario, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def label(scenario_id: str | None, asked: str | None) -> str:
    """What to show in the place of a digest: the beginning of what its rollout was asked. Empty for an id that says something."""
    if scenario_id is None or _DIGEST.fullmatch(scenario_id) is None:
        return ""
    words = " ".join((asked or "").split())
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1].rstrip()}…"
