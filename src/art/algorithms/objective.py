"""From a step's options to the loss of its tokens: losses, penalties and corrections put together.

    l = f * loss(logprob, ratio, A') - entropy_coef * entropy + kl_penalty_coef * kl

with A' the advantage less its penalties and f the correction. Every term is a function of its own module.

Axis legend: N trained tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from art.algorithms.correction import correction, serving_weight, truncation_factor
from art.algorithms.kl import ESTIMATORS, reward_penalty
from art.algorithms.losses import LossInputs, within_clip
from art.algorithms.ratios import importance_ratio
from art.algorithms.registry import find_loss
from art.config.train import TrainConfig


@dataclass(frozen=True, slots=True)
class Tokens:
    """Whole completions. Log-probabilities in nats, at each call's temperature."""

    logprobs_N: Tensor
    """Of the policy now, with a gradient."""
    entropy_N: Tensor
    """Of the policy now; with a gradient where there is a bonus."""
    served_N: Tensor
    """As recorded when the tokens were sampled."""
    old_N: Tensor
    """What ratios are taken to: the recorded ones, or the trainer's own before the first update."""
    reference_N: Tensor | None
    """Of the reference, where there is a penalty."""
    advantages_N: Tensor
    owner_N: Tensor
    """Each token's completion, counted from 0."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the tokens add to the loss, and figures of it."""

    loss_N: Tensor
    bounded_N: Tensor
    """Of bool; the loss's clip stops or bounds the token's gradient."""
    corrected_N: Tensor
    """Of bool; the correction lowers the token's weight."""


class Objective:
    """The loss per token that `config` asks for."""

    def __init__(self, config: TrainConfig, *, mean_kl: float = 0.0) -> None:
        """`mean_kl` is the mean of the divergence over the batch, in nats. ConfigError for a loss that is not there."""
        self._config = config
        self._mean_kl = mean_kl
        self._loss = find_loss(config.loss_fn)

    def __call__(self, tokens: Tokens) -> Terms:
        config = self._config
        log_ratio_N = tokens.logprobs_N - tokens.old_N
        epsilon, epsilon_high = config.clip
        inputs = LossInputs(
            logprobs_N=tokens.logprobs_N,
            ratio_N=importance_ratio(log_ratio_N, tokens.owner_N, config.level),
            advantages_N=self._advantages(tokens, log_ratio_N.detach()),
            owner_N=tokens.owner_N,
            epsilon=epsilon,
            epsilon_high=epsilon_high,
        )
        factor_N, corrected_N = self._factor(tokens, inputs, log_ratio_N.detach())
        loss_N = self._loss.per_token(inputs) * factor_N
        if config.entropy_coef:
            loss_N = loss_N - config.entropy_coef * tokens.entropy_N
        if tokens.reference_N is not None and config.kl_penalty == "loss":
            kl_N = ESTIMATORS[config.estimator](tokens.logprobs_N, tokens.reference_N)
            loss_N = loss_N + config.kl_penalty_coef * kl_N
        return Terms(loss_N, self._loss.bounded(inputs).detach(), corrected_N)

    def _advantages(self, tokens: Tokens, log_ratio_N: Tensor) -> Tensor:
        """The rewards' advantages less what each token pays for straying."""
        config, advantages_N = self._config, tokens.advantages_N
        if tokens.reference_N is not None and config.kl_penalty == "reward":
            kl_N = ESTIMATORS[config.estimator](tokens.old_N, tokens.reference_N)
            advantages_N = advantages_N + reward_penalty(
                kl_N, mean=self._mean_kl, coef=config.kl_penalty_coef
            )
        if config.kimi_k2_tau:
            advantages_N = advantages_N - config.kimi_k2_tau * log_ratio_N
        return advantages_N

    def _factor(self, tokens: Tokens, inputs: LossInputs, log_ratio_N: Tensor) -> tuple[Tensor, Tensor]:
        """(factor on each token's loss, tokens that the correction changes)."""
        config, bound = self._config, self._config.truncated_importance_sampling
        weight_N = self._loss.weight(inputs).detach()
        factor_N = torch.ones_like(log_ratio_N)
        corrected_N = torch.zeros_like(log_ratio_N, dtype=torch.bool)
        if bound is not None:
            kind, level = config.importance_correction, config.importance_correction_level
            if config.precalculate_logprobs:
                factor_N, corrected_N = serving_weight(
                    tokens.old_N - tokens.served_N,
                    owner_N=tokens.owner_N,
                    bound=bound,
                    kind=kind,
                    level=level,
                )
            else:
                factor_N, corrected_N = correction(
                    weight_N, log_ratio_N, owner_N=tokens.owner_N, bound=bound, kind=kind, level=level
                )
        if (most := config.max_negative_advantage_importance_sampling_weight) is not None:
            bounded_N = truncation_factor(weight_N, bound=most)
            factor_N = factor_N * torch.where(inputs.advantages_N < 0, bounded_N, torch.ones_like(bounded_N))
        if config.mask_prob_ratio:
            factor_N = factor_N * within_clip(inputs)
        return factor_N, corrected_N
