"""What a user may set about a training step. The one place where these defaults live."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from art.errors import UnsupportedOption

Loss = Literal["ppo"]
LOSSES: tuple[str, ...] = get_args(Loss)
_OTHER_WORDS = {
    "lr": "learning_rate",
    "clip_range": "epsilon",
    "epsilon_low": "epsilon",
    "grad_clip": "max_grad_norm",
    "epochs": "updates",
    "num_epochs": "updates",
}
"""Words that other trainers have for an option and that no likeness of letters leads from."""


class TrainConfig(BaseModel):
    """Options of `train`. `None` means: chosen by ART, printed once with its reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float | None = Field(default=None, gt=0, le=1.0)
    """Adam's step size; None resolves by model size."""
    loss_fn: Loss = "ppo"
    """`ppo`: clipped surrogate objective, Schulman et al. 2017 (arXiv:1707.06347)."""
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip of the probability ratio: 1 - epsilon."""
    epsilon_high: float = Field(default=0.28, gt=0)
    """Upper clip: 1 + epsilon_high (clip-higher, arXiv:2503.14476)."""
    normalize_advantages: bool = True
    """Divide by the group's standard deviation (GRPO, arXiv:2402.03300); False only subtracts the mean."""
    loss_aggregation: Literal["rollout", "token"] = "rollout"
    """`rollout`: mean over a rollout's trained tokens, then over rollouts. `token`: mean over all tokens."""
    truncated_importance_sampling: float | None = Field(default=2.0, gt=0)
    """Upper bound of the train/serve ratio used as a weight per token; None switches the correction off."""
    updates: int = Field(default=1, ge=1, le=64)
    """Optimizer updates per train call; each sees an equal share of the batch's rollouts."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    adam_epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    packed_sequence_length: int | None = Field(default=None, ge=16)
    """Tokens of one micro-batch row; None chooses by memory. A longer sample gets a row of its own."""
    logprob_calculation_chunk_size: int = Field(default=1024, ge=1)
    """Trained positions per pass of the LM head."""
    max_sequence_length: int | None = Field(default=None, ge=1)
    """A rollout with a longer sequence is `overlong`; None is the model's context."""
    max_steps_off_policy: int | None = Field(default=None, ge=0)
    """Rollouts sampled more steps before the parent are `stale`; None takes all."""

    @model_validator(mode="before")
    @classmethod
    def _take_neutral_options(cls, data: Any) -> Any:
        """openpipe-art's fields that are not applied here: taken where they change nothing, else refused."""
        if not isinstance(data, dict):
            return data
        for name in NEUTRAL_OPTIONS.keys() & data.keys():
            require_neutral(name, data[name], "TrainConfig")
        require_loss(data.get("loss_fn", LOSSES[0]), "TrainConfig")
        for name in data.keys() - cls.model_fields.keys() - NEUTRAL_OPTIONS.keys():
            raise ValueError(f"TrainConfig has no option {name!r}; {nearest(name, cls.model_fields)}")
        return {name: value for name, value in data.items() if name not in NEUTRAL_OPTIONS}


class ResolvedTrainConfig(TrainConfig):
    """A TrainConfig with every automatic value filled in, as it is stored in the manifest."""

    learning_rate: float = Field(gt=0, le=1.0)
    parity_mean: float = 0.06
    """Bound of the mean absolute difference between recorded and trainer log-probabilities."""
    parity_p99: float = 0.3
    parity_k3: float = 4e-3


#: Options of openpipe-art's `train` and `dev.TrainConfig` that exist elsewhere and are not applied here,
#: with the values that change nothing and are therefore accepted.
NEUTRAL_OPTIONS: dict[str, tuple[object, ...]] = {
    "adam_params": (None,),
    "advantage_balance": (0.0,),
    "allow_training_without_logprobs": (False,),
    "grad_accumulation_sequences": (None,),
    "importance_sampling_level": ("token",),
    "kimi_k2_tau": (None,),
    "kl_penalty_coef": (0.0,),
    "kl_penalty_reference_step": (None,),
    "kl_ref_adapter_path": (None,),
    "loss_fn_config": (None,),
    "mask_prob_ratio": (False,),
    "max_negative_advantage_importance_sampling_weight": (None,),
    "num_trajectories_learning_rate_multiplier_power": (0.0,),
    "plot_tensors": (False,),
    "ppo": (True,),
    "precalculate_logprobs": (False,),
    "save_checkpoint": (True, False),
    "scale_learning_rate_by_reward_std_dev": (False,),
}


def require_loss(value: object, where: str) -> None:
    """UnsupportedOption, naming `where`, for a loss that does not exist here."""
    if value not in LOSSES:
        raise UnsupportedOption(
            f"{where} does not support loss_fn={value!r}",
            cause=f"the losses of this release are: {', '.join(LOSSES)}",
            hint=f"leave loss_fn out: {LOSSES[0]} is used until the others exist",
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown option: the one that was probably meant, else all there are."""
    options = sorted(known)
    meant = _OTHER_WORDS.get(name) or next(iter(difflib.get_close_matches(name, options, n=1)), None)
    return f"did you mean {meant}?" if meant else f"the options are: {', '.join(options)}"


def require_neutral(name: str, value: object, where: str) -> None:
    """UnsupportedOption, naming `where`, unless `value` changes nothing."""
    neutral = NEUTRAL_OPTIONS[name]
    if value not in neutral:
        raise UnsupportedOption(
            f"{where} does not support {name}={value!r}",
            cause="the option would be ignored; no backend of this version applies it",
            hint=f"leave {name} out, or set it to {' or '.join(map(repr, neutral))}",
        )


def default_learning_rate(parameters: int) -> float:
    """The learning rate an unset option resolves to.

    Measured with LoRA rank 8 and AdamW: 1e-3 up to a few million parameters, 3e-4 at 135 million. Larger
    models follow the usual LoRA range, falling with the square root of the size and not under 1e-5.
    """
    if parameters <= 10_000_000:
        return 1e-3
    if parameters <= 200_000_000:
        return 3e-4
    return float(max(1e-5, 3e-4 * (200_000_000 / parameters) ** 0.5))
