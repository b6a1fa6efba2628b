"""Keys as the control API tells them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from art.types.wire import Wire

LONGEST_SECONDS = 100 * 365 * 24 * 3600.0
"""Of a key's life: a hundred years, which every calendar can still write."""


class Quotas(Wire):
    """What a key may use of the models; None is without a bound.

    A rollout's key counts as the key that opened the rollout, and a key that replaced another one goes on with its count.
    """

    model_config = ConfigDict(frozen=True)

    calls_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests to a model begun within any 60 seconds."""
    tokens_per_day: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Prompt and completion tokens of a day in UTC. A call that was begun below the bound is served to its end."""
    max_concurrent: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests to a model that are answered at once."""

    @property
    def bounded(self) -> bool:
        """There is a bound."""
        bounds = (self.calls_per_minute, self.tokens_per_day, self.max_concurrent)
        return any(bound is not None for bound in bounds)


class CreateKey(Wire):
    role: Literal["infer", "rollout", "train", "admin"]
    project: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """The only project the key sees; None is every project."""
    expires_in_seconds: float | None = Field(None, gt=0, le=LONGEST_SECONDS)
    label: str = Field("", max_length=200)
    """For people."""
    quotas: Quotas = Quotas()


class ChangeKey(Wire):
    """What changes about a key. Of the quotas those that are named; null lifts one."""

    quotas: Quotas

    @field_serializer("quotas")
    def _named(self, quotas: Quotas) -> dict[str, int | None]:
        return quotas.model_dump(exclude_unset=True)


class KeyInfo(BaseModel):
    key_id: str
    role: str
    project: str | None = None
    rollout_id: str | None = None
    label: str = ""
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    quotas: Quotas = Quotas()
    tokens_today: int = 0
    """Counted against `tokens_per_day` since midnight UTC; 0 without that quota."""


class OwnKey(BaseModel):
    """The key that asks."""

    key_id: str
    role: Literal["infer", "rollout", "train", "admin"]
    project: str | None = None
    """None is every project."""
    read_only: bool
    """`art ui`: whatever the role, nothing can be sampled or changed."""


class CreatedKey(BaseModel):
    key: str
    """The secret, shown this once."""
    info: KeyInfo


class RotateKey(Wire):
    grace_seconds: float = Field(0.0, ge=0, le=30 * 24 * 3600)
    """How long the old key goes on working beside the new one."""


class KeyList(BaseModel):
    keys: list[KeyInfo]
    """Without the keys of single rollouts."""
