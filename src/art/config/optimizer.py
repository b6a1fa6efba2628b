"""What every optimizer update takes, whatever it trains on. The one place where these defaults live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from art.errors import ConfigError, UnsupportedOption

OptimizerName = Literal["adamw", "adam", "sgd", "adafactor"]
Schedule = Literal["constant", "linear", "cosine"]


class OptimizerConfig(BaseModel):
    """Optimizer, learning rate schedule, and how a batch is cut. `None` means: chosen by ART, with a reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimizer: OptimizerName = "adamw"
    """torch.optim's. `adamw` and `adafactor` take the weight decay from the weights, `adam` and `sgd` from the
    gradient. Adafactor's learning rate is relative: it multiplies a matrix's root mean square, at least 1e-3."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The gradient is scaled down to this norm, over all trained weights, where it is longer."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay, an update, of the running mean of the gradient (adamw, adam)."""
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    """The same of its square. 0.99 forgets within a hundred updates, which is what a run of few steps needs."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Added to the root of that square, against a division by nothing."""
    sgd_momentum: float = Field(default=0.0, ge=0, lt=1)
    """Share of the last step that the next one keeps (sgd)."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Share of each weight, times the learning rate, that an update takes away. An adapter is small anyway: 0."""
    learning_rate_schedule: Schedule = "constant"
    """How the learning rate falls behind the warm-up, down to `learning_rate_floor`: algorithms/schedules.py."""
    warmup_updates: int = Field(default=0, ge=0)
    """Optimizer updates over which the learning rate grows to its full value."""
    schedule_updates: int | None = Field(default=None, ge=1)
    """Optimizer updates, counted from the model's first, at which the floor is reached, warm-up included. `train_sft`
    may leave it out: its schedule then spans the updates of the call."""
    learning_rate_floor: float = Field(default=0.1, gt=0, le=1)
    """The share of the learning rate that a falling schedule ends at, and stays at."""
    packed_sequence_length: int | None = Field(default=None, ge=16)
    """Tokens of one micro-batch row; None chooses by memory. A longer sample gets a row of its own."""
    logprob_calculation_chunk_size: int = Field(default=1024, ge=1)
    """Trained positions per pass of the LM head."""
    gradient_checkpointing: bool | None = None
    """Compute layers again in the backward pass instead of keeping what they need: less memory, about a quarter more
    time. None: where the longest sequence of a job would not fit otherwise."""

    @model_validator(mode="before")
    @classmethod
    def _known_words(cls, data: Any) -> Any:
        if isinstance(data, dict):
            require_word(data, "optimizer", get_args(OptimizerName))
            require_word(data, "learning_rate_schedule", get_args(Schedule))
        return data

    @model_validator(mode="after")
    def _refuse_idle_options(self) -> Self:
        for name, why in idle_options(self):
            raise UnsupportedOption(
                f"{name}={getattr(self, name)!r} cannot be applied", cause=why, hint=f"leave {name} out"
            )
        if self.schedule_updates is not None and self.warmup_updates > self.schedule_updates:
            raise ConfigError(
                f"warmup_updates={self.warmup_updates} is not possible",
                cause=f"schedule_updates, which the warm-up is part of, is {self.schedule_updates}",
            )
        return self


_OF: dict[str, tuple[str, ...]] = {
    "adamw": ("adam_beta1", "adam_beta2", "adam_epsilon"),
    "adam": ("adam_beta1", "adam_beta2", "adam_epsilon"),
    "sgd": ("sgd_momentum",),
    "adafactor": (),
}
"""Options of one optimizer that another has no use for."""


def idle_options(config: OptimizerConfig) -> Iterator[tuple[str, str]]:
    """(option, why) for each that is not at its default and would change nothing."""
    fields = OptimizerConfig.model_fields
    for name in sorted({name for names in _OF.values() for name in names} - set(_OF[config.optimizer])):
        if getattr(config, name) != fields[name].default:
            yield name, f"the optimizer is {config.optimizer}, which has no use for it"
    if config.learning_rate_schedule == "constant":
        for name in ("schedule_updates", "learning_rate_floor"):
            if getattr(config, name) != fields[name].default:
                yield name, "the learning rate does not fall: learning_rate_schedule is constant"


def require_rate(config: OptimizerConfig, learning_rate: object) -> None:
    """ConfigError where the learning rate is left to ART and the optimizer is one it has no figures for."""
    if learning_rate is None and config.optimizer not in ("adamw", "adam"):
        raise ConfigError(
            f"optimizer={config.optimizer!r} needs a learning_rate",
            cause="the rates that ART chooses were measured with AdamW, whose steps have another size",
            hint="start with 0.01 for adafactor, with 0.1 for sgd",
        )


def require_word(options: Mapping[str, Any], name: str, known: tuple[str, ...]) -> None:
    """UnsupportedOption when an option is none of the words that there are for it."""
    value = options.get(name, known[0])
    if value not in known:
        raise UnsupportedOption(
            f"{name}={value!r} is not supported",
            cause=f"it is one of {', '.join(known)}",
            hint=f"leave {name} out: {known[0]} is used",
        )
