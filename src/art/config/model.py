"""What a user may set about a model."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class LoraConfig(BaseModel):
    """The adapter's shape. Written into adapter_config.json as PEFT expects it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    r: int = Field(default=8, ge=1, le=1024)
    """Rank. 8 is enough for tasks of the size a laptop trains."""
    alpha: float = Field(default=16.0, gt=0)
    """The update is scaled by alpha / r."""
    target_modules: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Linear layers that get an adapter: all of a Llama block."""
    seed: int = 0
    """Of the initial A matrices."""


class ModelConfig(BaseModel):
    """Everything fixed when a model is registered; a later registration with other values is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_model: str
    """A folder, or a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct."""
    lora: LoraConfig = Field(default_factory=lambda: LoraConfig())
    initial_adapter: str | None = None
    """Folder of a PEFT adapter to start from; None starts at the base model."""
    history: Literal["keep", "template"] = "keep"
    """History policy: `keep` serves earlier turns as sampled."""
    chat_template: str | None = None
    """A Jinja template that replaces the model's own."""
    tool_parser: str | None = None
    """How the model writes tool calls (`hermes`, `llama3`, ...); None is chosen from the chat template."""
    reasoning_parser: str | None = None
    """How the model writes its reasoning (`think`, ..., or `none`); None is chosen from the chat template."""
