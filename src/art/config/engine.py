"""What a user may set about the engine and the trainer process."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class EngineConfig(BaseModel):
    """How engine workers are started. `None` means: chosen by the engine, reported in its notes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["torch", "scripted"] = "torch"
    """`torch` runs the model; `scripted` answers from a file, for tests."""
    script: str | None = None
    """Rules of the scripted engine (JSON)."""
    token_log: str | None = None
    """File to which the scripted engine writes the tokens it was given and sampled."""
    max_batch: int | None = Field(None, ge=1, le=4096)
    """Choices decoded at once."""
    context: int | None = Field(None, ge=16)
    """Tokens of prompt and completion together; None is the base model's."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the weights; `auto` is bf16 where the machine multiplies it in hardware. The trainer has its own."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of the worker; None is every core it may use."""
    prefix_cache: bool = True
    """Compute the beginning that prompts have in common once."""
    max_adapters: int | None = Field(None, ge=1)
    """Adapter versions held in memory at once."""

    @model_validator(mode="after")
    def _scripted_alone(self) -> EngineConfig:
        """Said when the server starts, and not at its first call."""
        given = [name for name in ("script", "token_log") if getattr(self, name) is not None]
        if given and self.kind != "scripted":
            raise ValueError(
                f"{' and '.join(given)}: only the scripted engine has these; this one is {self.kind}"
            )
        return self


class TrainerConfig(BaseModel):
    """How the trainer worker is started."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int | None = Field(None, ge=1)
    """CPU threads; None is every core it may use."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the base weights; `auto` is bf16 where the machine multiplies it in hardware. The engine has its own."""
