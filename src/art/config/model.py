"""What a user may set about a model."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from art.config.train import nearest
from art.errors import UnsupportedOption

Quantization = Literal["int8", "nf4"]


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
    rslora: bool = False
    """Scale by alpha / sqrt(r) instead, so that a larger rank learns as fast (rsLoRA, arXiv:2312.03732)."""
    dora: bool = False
    """Train the length of each row of a matrix apart from its direction (DoRA, arXiv:2402.09353): one more number
    for each row, and a slower step."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        """Unknown options are refused with the one that was probably meant."""
        if isinstance(data, dict):
            for name in data.keys() - cls.model_fields.keys():
                raise ValueError(f"LoraConfig has no option {name!r}; {nearest(str(name), cls.model_fields)}")
        return data

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / (math.sqrt(self.r) if self.rslora else self.r)


class ModelConfig(BaseModel):
    """Everything fixed when a model is registered; a later registration with other values is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_model: str
    """A folder, or a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct."""
    training: Literal["lora", "full"] = "lora"
    """`lora` trains an adapter. `full` trains all weights, of a small model: 20 bytes of memory a weight, 12 on the disk
    for each step kept, and the engine holds a whole copy of each step it serves."""
    lora: LoraConfig = Field(default_factory=lambda: LoraConfig())
    quantization: Quantization | None = None
    """The base model's matrices, rounded: `int8`, or `nf4` of 4 bits. Engine and trainer see the same rounded model; the
    trainer holds it packed. None leaves them as they are."""
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

    @property
    def adapter(self) -> LoraConfig | None:
        """What is trained; None where it is all weights."""
        return self.lora if self.training == "lora" else None

    @model_validator(mode="after")
    def _refuse_an_idle_adapter(self) -> Self:
        if self.training == "full":
            idle = {"lora": LoraConfig(), "initial_adapter": None, "quantization": None}
            for name, default in idle.items():
                if getattr(self, name) != default:
                    raise UnsupportedOption(
                        f"{name}={getattr(self, name)!r} cannot be applied",
                        cause='training="full" trains all weights, in float32 and without an adapter',
                        hint=f"leave {name} out",
                    )
        return self
