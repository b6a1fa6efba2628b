"""What a user may set about supervised fine-tuning. The one place where these defaults live."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from art.config.optimizer import OptimizerConfig, require_rate
from art.config.train import default_learning_rate, nearest
from art.errors import InvalidInput, UnsupportedOption

AUTO_BATCH_SIZE = 2
"""What `batch_size="auto"` stands for: with few demonstrations many small updates teach more than few large ones."""

Rate = Annotated[float, Field(gt=0, le=1.0)]


class TrainSFTConfig(OptimizerConfig):
    """Options of `train_sft`. `None` and "auto" mean: chosen by ART, told once with the reason."""

    learning_rate: Rate | list[Rate] | None = None
    """The optimizer's step size, or one for each update; None resolves by model size."""
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Trajectories of one optimizer update. The last update of a call may have fewer."""
    max_sequence_length: int | None = Field(default=None, ge=2)
    """A longer example is left out as `overlong`; None is the model's context."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        """Unknown options are refused with the one that was probably meant."""
        if isinstance(data, dict):
            for name in data.keys() - cls.model_fields.keys():
                hint = nearest(str(name), TrainSFTConfig.model_fields)
                raise ValueError(f"TrainSFTConfig has no option {name!r}; {hint}")
        return data

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        require_rate(self, self.learning_rate)
        if isinstance(self.learning_rate, list):
            for name in ("learning_rate_schedule", "warmup_updates"):
                if getattr(self, name) != OptimizerConfig.model_fields[name].default:
                    raise UnsupportedOption(
                        f"{name}={getattr(self, name)!r} cannot be applied",
                        cause="learning_rate is a list, which is a schedule by itself",
                        hint=f"leave {name} out, or give one learning_rate",
                    )
        return self


class ResolvedSFTConfig(OptimizerConfig):
    """A TrainSFTConfig with every automatic value filled in, as it is stored in the manifest."""

    learning_rates: list[Rate]
    """One for each update, in order; warm-up and schedule are still to be applied."""
    batch_size: int = Field(ge=1)


def resolve(
    config: TrainSFTConfig, *, examples: int, parameters: int, whole: bool = False
) -> tuple[ResolvedSFTConfig, list[str]]:
    """The config of a call on `examples` trajectories, and the choices that were made with their reasons.

    `parameters` is the base model's size; `whole`: all of them are trained. InvalidInput when the learning rates are not
    one for each update.
    """
    notes = []
    size = resolve_batch_size(config.batch_size)
    if config.batch_size == "auto":
        notes.append(f"batch_size {size}: chosen; more updates teach more than larger ones")
    updates = -(-examples // size)
    rates = config.learning_rate
    if rates is None:
        rates = default_learning_rate(parameters, whole=whole)
        notes.append(
            f"learning_rate {rates:g}: chosen for a model of {parameters / 1e6:.3g} million parameters"
        )
    if isinstance(rates, float):
        if config.learning_rate_schedule != "constant" and config.schedule_updates is None:
            notes.append(
                f"the {config.learning_rate_schedule} schedule spans the {updates} updates of this call: "
                "schedule_updates is not set"
            )
        rates = [rates] * updates
    if len(rates) != updates:
        raise InvalidInput(
            f"there are {len(rates)} learning rates for {updates} updates",
            cause=f"{examples} trajectories in batches of {size} are {updates} updates",
            hint="give one learning rate for each update, or a single number for all",
        )
    if config.schedule_updates is None and config.warmup_updates > updates:
        raise InvalidInput(
            f"warmup_updates={config.warmup_updates} is more than the {updates} updates of the call",
            hint="warm up over fewer updates, or give more trajectories",
        )
    values = config.model_dump(exclude={"learning_rate", "batch_size", "max_sequence_length"})
    return ResolvedSFTConfig(learning_rates=rates, batch_size=size, **values), notes


def resolve_batch_size(batch_size: int | Literal["auto"]) -> int:
    """The number that a batch size stands for."""
    return AUTO_BATCH_SIZE if batch_size == "auto" else batch_size
