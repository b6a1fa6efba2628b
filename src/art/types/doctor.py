"""What `art doctor` found out: one entry a check, for a person and for a program."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

CheckStatus = Literal["ok", "note", "failed", "skipped"]
"""`note`: it works, and something about it is worth knowing. `skipped`: something before it failed."""


class Check(BaseModel):
    """One question and its answer."""

    name: str
    status: CheckStatus
    detail: str
    hint: str = ""
    """What to do; empty where nothing needs doing."""
    figures: dict[str, Any] = Field(default_factory=dict)
