"""What a user may set about supervised fine-tuning. The one place where these defaults live."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from art.config.optimizer import OptimizerConfig
from art.config.train import default_learning_rate, nearest
from art.errors import InvalidInput

AUTO_BATCH_SIZE = 2
"""What `batch_size="auto"` stands for: with few demonstrations many small updates teach more than few large ones."""

Rate = Annotated[float, Field(gt=0, le=1.0)]


class TrainSFTConfig(OptimizerConfig):
    """Options of `train_sft`. `None` and "auto" mean: chosen by ART, told once with the reason."""

    learning_rate: Rate | list[Rate] | None = None
    """Adam's step size, or one for each update; None resolves by model size."""
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


class ResolvedSFTConfig(OptimizerConfig):
    """A TrainSFTConfig with every automatic value filled in, as it is stored in the manifest."""

    learning_rates: list[Rate]
    """One for each update, in order."""
    batch_size: int = Field(ge=1)


def resolve(config: TrainSFTConfig, *, examples: int, parameters: int) -> tuple[ResolvedSFTConfig, list[str]]:
    """The config of a call on `examples` trajectories, and the choices that were made with their reasons.

    `parameters` is the base model's size. InvalidInput when the learning rates are not one for each update.
    """
    notes = []
    size = resolve_batch_size(config.batch_size)
    if config.batch_size == "auto":
        notes.append(f"batch_size {size}: chosen; more updates teach more than larger ones")
    updates = -(-examples // size)
    rates = config.learning_rate
    if rates is None:
        rates = default_learning_rate(parameters)
        notes.append(
            f"learning_rate {rates:g}: chosen for a model of {parameters / 1e6:.3g} million parameters"
        )
    if isinstance(rates, float):
        rates = [rates] * updates
    if len(rates) != updates:
        raise InvalidInput(
            f"there are {len(rates)} learning rates for {updates} updates",
            cause=f"{examples} trajectories in batches of {size} are {updates} updates",
            hint="give one learning rate for each update, or a single number for all",
        )
    values = config.model_dump(exclude={"learning_rate", "batch_size", "max_sequence_length"})
    return ResolvedSFTConfig(learning_rates=rates, batch_size=size, **values), notes


def resolve_batch_size(batch_size: int | Literal["auto"]) -> int:
    """The number that a batch size stands for."""
    return AUTO_BATCH_SIZE if batch_size == "auto" else batch_size
