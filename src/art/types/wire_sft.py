"""Supervised fine-tuning over the control API: what `POST /api/v1/jobs/sft` takes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from art.config.sft import TrainSFTConfig
from art.types.wire import Int64, Wire


class SftConversation(Wire):
    """Messages in OpenAI's chat format; those of the assistant are trained unless they say `trainable: false`."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


class SftExample(Wire):
    """One trajectory: its conversations are in the same update."""

    conversations: Annotated[list[SftConversation], Field(min_length=1)]


class SubmitSft(Wire):
    """One call of supervised fine-tuning: one published step.

    `Idempotency-Key` makes a repeated submission the same job.
    """

    project: str
    name: str
    examples: Annotated[list[SftExample], Field(min_length=1)]
    """Each different example once."""
    order: Annotated[list[Int64], Field(min_length=1)] | None = None
    """Indices into `examples` in the order of training, with repetitions; None is each once, as they stand."""
    config: TrainSFTConfig = Field(default_factory=lambda: TrainSFTConfig())
