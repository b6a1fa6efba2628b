"""The audit log as the control API tells it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class AuditEntry(BaseModel):
    """One change."""

    id: int
    """Grows with every change."""
    time: float
    """Unix time."""
    key_id: str | None
    """Whose key made it; None is the server itself."""
    action: str
    """The route, such as `POST /api/v1/keys`."""
    target: str
    """What it touched: names and ids."""
    detail: dict[str, Any] = Field(default_factory=dict)
    """`from`: the address that it came from; further what the route says."""


class AuditList(BaseModel):
    entries: list[AuditEntry]
    """Newest first."""
