"""What every optimizer update takes, whatever it trains on. The one place where these defaults live."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class OptimizerConfig(BaseModel):
    """AdamW, and how a batch is cut for it. `None` means: chosen by ART, with a reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_grad_norm: float = Field(default=1.0, gt=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    adam_epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    packed_sequence_length: int | None = Field(default=None, ge=16)
    """Tokens of one micro-batch row; None chooses by memory. A longer sample gets a row of its own."""
    logprob_calculation_chunk_size: int = Field(default=1024, ge=1)
    """Trained positions per pass of the LM head."""
    gradient_checkpointing: bool | None = None
    """Compute layers again in the backward pass instead of keeping what they need: less memory, about a quarter more
    time. None: where the longest sequence of a job would not fit otherwise."""
