"""What a user may set about a training step. The one place where these defaults live."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from art.config.optimizer import OptimizerConfig, require_rate
from art.errors import ConfigError, UnsupportedOption

LOSSES = ("cispo", "ppo", "gspo", "importance_sampling")
"""Losses by name; the first is used when none is named."""
Advantages = Literal["grpo", "dr_grpo", "rloo", "reinforce++", "rank"]
Level = Literal["token", "sequence", "average", "geometric_average"]
Estimator = Literal["k1", "k2", "k3"]
_CLIPS: dict[str, tuple[float, float]] = {
    "ppo": (0.2, 0.28),  # DAPO, arXiv:2503.14476
    "cispo": (1.0, 4.0),  # no lower bound as in MiniMax-M1, arXiv:2506.13585; the ratio weighs 5 at most
    "gspo": (3e-4, 4e-4),  # arXiv:2507.18071, section 5.1: a mean over a sequence hardly moves
}
"""(epsilon, epsilon_high) of a loss where they are not set. A loss by import path has those of ppo."""
_OWN_LOSS = re.compile(r"[\w.]+:[\w.]+|\w+(\.\w+)+")
OTHER_WORDS = {
    "lr": "learning_rate",
    "clip_range": "epsilon",
    "epsilon_low": "epsilon",
    "grad_clip": "max_grad_norm",
    "lr_scheduler_type": "learning_rate_schedule",
    "lr_schedule": "learning_rate_schedule",
    "optim": "optimizer",
    "momentum": "sgd_momentum",
    "warmup_steps": "warmup_updates",
    "epochs": "updates",
    "num_epochs": "updates",
    "beta": "kl_penalty_coef",
    "kl_coef": "kl_penalty_coef",
    "rank": "r",
    "lora_r": "r",
    "lora_alpha": "alpha",
    "targets": "target_modules",
    "use_rslora": "rslora",
    "use_dora": "dora",
}
"""Words that other trainers have for an option and that no likeness of letters leads from."""


class TrainConfig(OptimizerConfig):
    """Options of `train`; docs/algorithms.md has their formulas. `None` means: chosen by ART, with a reason."""

    learning_rate: float | None = Field(default=None, gt=0, le=1.0)
    """The optimizer's step size, before warm-up and schedule; None resolves by model size."""
    num_trajectories_learning_rate_multiplier_power: float = Field(default=0.0, ge=-2, le=2)
    """The step size is multiplied by (rollouts of the update) to this power; 0 leaves it alone."""
    scale_learning_rate_by_reward_std_dev: bool = False
    """Multiply the step size by the mean standard deviation of the trained groups' rewards."""

    advantages: Advantages = "grpo"
    """How a rollout's reward is compared with those of its group: algorithms/advantages.py."""
    normalize_advantages: bool | None = None
    """Divide by the group's standard deviation. None: `grpo` does, the others do not."""
    advantage_balance: float = Field(default=0.0, ge=-1, le=1)
    """b > 0 multiplies negative advantages by 1 - b, b < 0 positive ones by 1 + b."""
    group_mean_range: tuple[float, float] | None = None
    """Groups whose mean reward lies outside are left out as too hard or too easy; None keeps all."""
    overlong_max_length: int | None = Field(default=None, ge=1)
    """Sampled tokens of a completion from which the length penalty is whole; None: no penalty."""
    overlong_buffer: int | None = Field(default=None, ge=1)
    """Tokens before `overlong_max_length` over which the penalty grows from 0."""
    overlong_penalty: float = Field(default=1.0, gt=0)
    """What the whole length penalty takes from the reward."""

    loss_fn: str = LOSSES[0]
    """One of `LOSSES`, `package.module:function`, or a plug-in's dotted name (entry points `art.losses`)."""
    epsilon: float | None = Field(default=None, gt=0, le=1)
    """Lower clip of the probability ratio: 1 - epsilon. None: the loss's usual one (`_CLIPS`)."""
    epsilon_high: float | None = Field(default=None, gt=0)
    """Upper clip: 1 + epsilon_high (clip-higher, arXiv:2503.14476). None: the loss's usual one."""
    mask_prob_ratio: bool = False
    """Leave tokens out whose ratio is outside the clip, whatever the sign of their advantage."""
    importance_sampling_level: Level | None = None
    """The ratio of a token: its own, its completion's mean, or a mean of both. None: `sequence` for gspo, else `token`."""
    max_negative_advantage_importance_sampling_weight: float | None = Field(default=None, gt=0)
    """Upper bound of the ratio as a weight where the advantage is negative."""
    kimi_k2_tau: float | None = Field(default=None, ge=0)
    """Takes tau * log ratio from each token's advantage (Kimi K2, arXiv:2507.20534); None switches it off."""
    entropy_coef: float | None = Field(default=None, ge=0)
    """Weight of the entropy bonus, in loss per nat; None resolves by model size, 0 switches it off."""
    loss_aggregation: Literal["rollout", "token"] = "rollout"
    """`rollout`: mean over a rollout's trained tokens, then over rollouts. `token`: mean over all tokens."""

    kl_penalty_coef: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the reference; above 0 costs one more forward pass."""
    kl_penalty: Literal["reward", "loss"] = "reward"
    """`reward`: taken from each token's advantage, less the batch's mean. `loss`: added to the loss."""
    kl_estimator: Estimator | None = None
    """Schulman 2020. None: k1 for `reward`, k3 for `loss`."""
    kl_penalty_reference_step: int | None = Field(default=None, ge=0)
    """The model's step that is the reference. None: the base model, its adapter off."""
    kl_ref_adapter_path: str | None = None
    """Folder of a PEFT adapter, on the server, that is the reference."""

    precalculate_logprobs: bool = False
    """Ratios are taken to the trainer's log-probabilities before the first update, not to the recorded ones.
    The correction then applies to the difference of those two. Costs one more forward pass."""
    truncated_importance_sampling: float | None = Field(default=2.0, gt=0)
    """Bound of the train/serve ratio; None switches the correction off."""
    importance_correction: Literal["truncate", "mask"] = "truncate"
    """`truncate`: the ratio weighs at most the bound. `mask`: tokens outside [1 / bound, bound] are left out."""
    importance_correction_level: Literal["token", "sequence"] = "token"
    """Whose ratio is bounded: a token's own, or the product over its completion."""

    updates: int = Field(default=1, ge=1, le=64)
    """Optimizer updates per train call; each sees an equal share of the batch's rollouts."""
    max_sequence_length: int | None = Field(default=None, ge=1)
    """A rollout with a longer sequence is `overlong`; None is the model's context."""
    max_steps_off_policy: int | None = Field(default=None, ge=0)
    """Rollouts sampled more steps before the parent are `stale`; None takes all."""

    @property
    def clip(self) -> tuple[float, float]:
        """(epsilon, epsilon_high) as they are applied."""
        low, high = _CLIPS.get(self.loss_fn, _CLIPS["ppo"])
        return (
            low if self.epsilon is None else self.epsilon,
            high if self.epsilon_high is None else self.epsilon_high,
        )

    @property
    def level(self) -> Level:
        """`importance_sampling_level` as it is applied."""
        return self.importance_sampling_level or ("sequence" if self.loss_fn == "gspo" else "token")

    @property
    def normalizes(self) -> bool:
        """Whether a group's advantages are divided by its standard deviation."""
        if self.normalize_advantages is None:
            return self.advantages == "grpo"
        return self.normalize_advantages

    @property
    def unit_advantages(self) -> bool:
        """Whether advantages are about 1 in size, however much or little the rewards differ."""
        return self.normalizes or self.advantages in ("reinforce++", "rank")

    @property
    def estimator(self) -> Estimator:
        """`kl_estimator` as it is applied."""
        return self.kl_estimator or ("k1" if self.kl_penalty == "reward" else "k3")

    @model_validator(mode="before")
    @classmethod
    def _take_other_names(cls, data: Any) -> Any:
        """openpipe-art's fields: translated, taken where they change nothing, else refused."""
        if not isinstance(data, dict):
            return data
        if "ppo" in data:
            data = dict(data)
            named = loss_of_ppo(data.pop("ppo"))
            if data.setdefault("loss_fn", named) != named:
                raise ValueError(f"ppo names the loss {named}, and loss_fn is {data['loss_fn']!r}")
        for name in NEUTRAL_OPTIONS.keys() & data.keys():
            require_neutral(name, data[name], "TrainConfig")
        require_loss(data.get("loss_fn", LOSSES[0]), "TrainConfig")
        for name in data.keys() - cls.model_fields.keys() - NEUTRAL_OPTIONS.keys():
            raise ValueError(f"TrainConfig has no option {name!r}; {nearest(name, cls.model_fields)}")
        return {name: value for name, value in data.items() if name not in NEUTRAL_OPTIONS}

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> Self:
        for name, why in without_effect(self):
            raise UnsupportedOption(
                f"{name}={getattr(self, name)!r} cannot be applied", cause=why, hint=f"leave {name} out"
            )
        require_rate(self, self.learning_rate)
        for name, why in impossible(self):
            raise ConfigError(f"{name}={getattr(self, name)!r} is not possible", cause=why)
        return self


class ResolvedTrainConfig(TrainConfig):
    """A TrainConfig with every automatic value filled in, as it is stored in the manifest."""

    learning_rate: float = Field(gt=0, le=1.0)
    entropy_coef: float = Field(default=0.0, ge=0)
    parity_mean: float = 0.06
    """Bound of the mean absolute difference between recorded and trainer log-probabilities."""
    parity_p99: float = 0.3
    parity_k3: float = 4e-3


def without_effect(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """(option, why) for each option that is set and would change nothing beside the others."""
    if config.loss_fn == "importance_sampling":
        for name in ("epsilon", "epsilon_high", "mask_prob_ratio"):
            if getattr(config, name):
                yield name, "the loss importance_sampling has no clip"
    if config.loss_fn == "gspo" and config.level != "sequence":
        yield "importance_sampling_level", "gspo is ppo at the level of sequences; loss_fn='ppo' takes others"
    if config.normalize_advantages and config.advantages in ("dr_grpo", "rank"):
        yield "normalize_advantages", f"{config.advantages} divides by nothing"
    if config.normalize_advantages is False and config.advantages == "reinforce++":
        yield "normalize_advantages", "reinforce++ divides by the batch's standard deviation"
    if config.kl_penalty_coef == 0:
        for name in ("kl_penalty_reference_step", "kl_ref_adapter_path", "kl_estimator"):
            if getattr(config, name) is not None:
                yield name, "kl_penalty_coef is 0, so there is no penalty"
        if config.kl_penalty != "reward":
            yield "kl_penalty", "kl_penalty_coef is 0, so there is no penalty"
    if config.kl_penalty_reference_step is not None and config.kl_ref_adapter_path is not None:
        yield "kl_ref_adapter_path", "kl_penalty_reference_step names another reference"
    if config.kl_penalty == "loss" and config.kl_estimator == "k1":
        yield "kl_estimator", "the gradient of k1 is zero on average (arXiv:2506.09477); k2 and k3 have one"
    if config.truncated_importance_sampling is None:
        if config.importance_correction == "mask":
            yield "importance_correction", "truncated_importance_sampling is None, so there is no bound"
        if config.importance_correction_level == "sequence":
            yield "importance_correction_level", "truncated_importance_sampling is None, so there is no bound"
    if config.overlong_max_length is None:
        if config.overlong_buffer is not None:
            yield "overlong_buffer", "there is no overlong_max_length"
        if config.overlong_penalty != 1.0:
            yield "overlong_penalty", "there is no overlong_max_length"


def impossible(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """(option, why) for each value that contradicts another."""
    bound = config.truncated_importance_sampling
    if config.importance_correction == "mask" and bound is not None and bound <= 1:
        yield "truncated_importance_sampling", "a mask needs a bound above 1: it keeps [1 / bound, bound]"
    if config.learning_rate_schedule != "constant" and config.schedule_updates is None:
        yield (
            "learning_rate_schedule",
            "schedule_updates says over how many updates the rate falls; set it too",
        )
    if config.overlong_max_length is not None and config.overlong_buffer is None:
        yield "overlong_max_length", "overlong_buffer says over how many tokens the penalty grows; set it too"
    if (config.overlong_buffer or 0) > (config.overlong_max_length or 0):
        yield "overlong_buffer", "it is longer than overlong_max_length"
    if config.group_mean_range is not None and not config.group_mean_range[0] <= config.group_mean_range[1]:
        yield "group_mean_range", "it is (lowest, highest)"


#: Options of openpipe-art's `train` and `dev.TrainConfig` that exist elsewhere and are not applied here,
#: with the values that change nothing and are therefore accepted.
NEUTRAL_OPTIONS: dict[str, tuple[object, ...]] = {
    "adam_params": (None,),
    "allow_training_without_logprobs": (False,),
    "grad_accumulation_sequences": (None,),
    "loss_fn_config": (None,),
    "plot_tensors": (False,),
    "save_checkpoint": (True, False),
}


def loss_of_ppo(value: object) -> str:
    """The loss that openpipe-art's option `ppo` names."""
    return "ppo" if value else "cispo"


def require_loss(value: object, where: str) -> None:
    """UnsupportedOption, naming `where`, for a name that is no loss. The trainer finds out whether one's own exists."""
    if not isinstance(value, str) or not (value in LOSSES or _OWN_LOSS.fullmatch(value)):
        raise UnsupportedOption(
            f"{where} does not support loss_fn={value!r}",
            cause=f"the losses are {', '.join(LOSSES)}, and your own as package.module:function",
            hint=f"leave loss_fn out: {LOSSES[0]} is used",
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown option: the one that was probably meant, else all there are."""
    options = sorted(known)
    meant = OTHER_WORDS.get(name) or next(iter(difflib.get_close_matches(name, options, n=1)), None)
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


def default_learning_rate(parameters: int, *, whole: bool = False) -> float:
    """The learning rate an unset option resolves to.

    Measured with LoRA rank 8 and AdamW: 1e-3 up to a few million parameters, 5e-4 at 135 million (docs/learning.md). Larger
    models follow the usual LoRA range, from 3e-4 falling with the square root of the size and not under 1e-5. All weights
    (`whole`) take a tenth of what an adapter takes (Schulman et al. 2025, "LoRA Without Regret").
    """
    share = 0.1 if whole else 1.0
    if parameters <= 10_000_000:
        return share * 1e-3
    if parameters <= 200_000_000:
        return share * 5e-4
    return float(share * max(1e-5, 3e-4 * (200_000_000 / parameters) ** 0.5))


def default_entropy_coef(config: TrainConfig, parameters: int) -> float:
    """The entropy bonus, in loss per nat, that an unset option resolves to.

    0.05 between ten and 200 million parameters, where a policy without it stops trying before it has found what pays
    (docs/learning.md). None for larger models, where nothing was measured, nor for the smallest, which are for tests; nor
    beside advantages as large as the rewards' differences: as those shrink the bonus may outweigh them (one run with dr_grpo unlearned).
    """
    small = 10_000_000 < parameters <= 200_000_000
    return 0.05 if small and config.unit_advantages else 0.0


def chosen_by_size(config: TrainConfig, parameters: int, *, whole: bool) -> dict[str, float]:
    """The options of `config` that are unset and resolve by the base model's size, as they are applied.

    `whole`: all the model's weights are trained.
    """
    chosen = {
        "learning_rate": default_learning_rate(parameters, whole=whole),
        "entropy_coef": default_entropy_coef(config, parameters),
    }
    return {option: value for option, value in chosen.items() if getattr(config, option) is None}
