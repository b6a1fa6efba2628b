"""One training job's arithmetic: forward, loss, backward and optimizer updates over a batch.

Axis legend: N trained tokens of a row, R members of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from art.algorithms.aggregation import token_weights
from art.algorithms.objective import Objective, Tokens
from art.algorithms.step_size import step_size
from art.config.train import ResolvedTrainConfig
from art.errors import TrainingFailed
from art.trainer.batch import Batch, Member
from art.trainer.forward import Policy, Row, Rows
from art.trainer.lookback import LookBack, OnRow, gather
from art.trainer.optimizer import Optimizer
from art.trainer.trace import Found, note


@dataclass(slots=True)
class Tally:
    """Sums over trained tokens, from which the step's figures are taken."""

    loss: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    truncated: float = 0.0
    targets: int = 0
    computed: int = 0
    """Trie tokens that went through the model."""
    rows: int = 0
    grad_norms: list[float] = field(default_factory=list)
    step_sizes: list[float] = field(default_factory=list)
    mean_kl: float | None = None
    """Divergence of the step's parent from the reference, where there is one."""
    differences: list[Tensor] = field(default_factory=list)
    """Trainer minus recorded log-probabilities of on-policy tokens, before the first update."""
    found: Found = field(default_factory=dict)
    """The trainer's log-probabilities before the first update, of the choices that it trains."""


class Updater:
    """Runs the optimizer updates of one job on a policy whose adapter and optimizer state are loaded."""

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        config: ResolvedTrainConfig,
        *,
        row_tokens: int,
        on_row: OnRow,
    ) -> None:
        self._policy = policy
        self._optimizer = optimizer
        self._config = config
        self._row_tokens = row_tokens
        self._on_row = on_row

    def run(self, batch: Batch, known: LookBack, *, before_first_update: Callable[[Tally], None]) -> Tally:
        """All updates of the job. `before_first_update` sees the parity figures and may raise.

        Raises TrainingFailed for a loss or gradient that is not finite; the caller then drops the policy's
        state, so nothing of the step remains.
        """
        objective = Objective(self._config, mean_kl=known.mean_kl or 0.0)
        shares = split_evenly(batch.trained, self._config.updates)
        plans = [(share, self._rows(share)) for share in shares]
        total = sum(len(rows) for _, rows in plans)
        tally = Tally(mean_kl=known.mean_kl)
        for number, (share, rows) in enumerate(plans):
            self._optimizer.zero_grad(set_to_none=True)
            weigh = _Weights(share, batch.members, self._config)
            for row in rows:
                tokens = self._tokens(row, known, batch.members)
                self._backward(row, objective, tokens, weigh(row), tally)
                if number == 0:
                    on_policy = torch.tensor([choice.on_policy for choice in row.choices])[row.owner]
                    difference = tokens.logprobs_N.detach() - tokens.served_N
                    tally.differences.append(difference.cpu()[on_policy])
                    note(tally.found, row, tokens.logprobs_N)
                self._on_row(tally.rows, total)
            if number == 0:
                before_first_update(tally)
            tally.grad_norms.append(self._clip())
            tally.step_sizes.append(self._set_step_size(share, batch))
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        tally.loss /= len(plans)
        return tally

    def _rows(self, share: Sequence[Member]) -> Rows:
        choices = [choice for member in share for choice in member.choices]
        return self._policy.rows(choices, budget=self._row_tokens)

    def _tokens(self, row: Row, known: LookBack, members: Sequence[Member]) -> Tokens:
        """The row's targets: computed now, with a gradient, and what is known of them."""
        device = self._policy.device
        advantages = torch.tensor(
            [members[choice.rollout].advantage or 0.0 for choice in row.choices], dtype=torch.float32
        )[row.owner].to(device)
        logprobs, entropy = self._policy.logprobs(
            row,
            chunk=self._config.logprob_calculation_chunk_size,
            entropy_gradient=bool(self._config.entropy_coef),
        )
        return Tokens(
            logprobs_N=logprobs,
            entropy_N=entropy,
            served_N=recorded_logprobs(row).to(device),
            old_N=gather(row, known.old).to(device),
            reference_N=None if known.reference is None else gather(row, known.reference).to(device),
            advantages_N=advantages,
            owner_N=row.owner.to(device),
        )

    def _backward(
        self, row: Row, objective: Objective, tokens: Tokens, weights: Tensor, tally: Tally
    ) -> None:
        """Add one row's gradient and figures."""
        terms = objective(tokens)
        loss = (terms.loss_N * weights.to(terms.loss_N.device)).sum()
        if not math.isfinite(value := float(loss.detach())):
            raise TrainingFailed(
                f"The loss is {value}",
                cause="a log-probability of the trainer is not finite, or differs too far from the recorded one",
                hint="lower learning_rate, or train on rollouts of the current step; nothing was published",
            )
        loss.backward()
        tally.loss += value
        tally.entropy += float(tokens.entropy_N.detach().sum())
        tally.clipped += float(terms.bounded_N.sum())
        tally.truncated += float(terms.corrected_N.sum())
        tally.targets += len(tokens.owner_N)
        tally.computed += row.trie.size
        tally.rows += 1

    def _set_step_size(self, share: Sequence[Member], batch: Batch) -> float:
        """The optimizer's step size for an update on `share`; returns it."""
        config = self._config
        size = step_size(
            self._optimizer.rate(config.learning_rate),
            rollouts=len({member.trajectory.rollout_id for member in share}),
            power=config.num_trajectories_learning_rate_multiplier_power,
            reward_deviation=batch.reward_deviation()
            if config.scale_learning_rate_by_reward_std_dev
            else None,
        )
        self._optimizer.set_step_size(size)
        return size

    def _clip(self) -> float:
        """Clip the gradient to max_grad_norm; returns its norm before."""
        parameters = [p for p in self._policy.parameters.values() if p.grad is not None]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm))
        if not math.isfinite(norm):
            raise TrainingFailed(
                f"The gradient's norm is {norm}",
                cause="a backward pass overflowed",
                hint="lower learning_rate, or use float32; nothing was published",
            )
        return norm


class _Weights:
    """Each target's share of the loss of one update, normalised over all its rows."""

    def __init__(
        self, share: Sequence[Member], members: Sequence[Member], config: ResolvedTrainConfig
    ) -> None:
        choices = [choice for member in share for choice in member.choices]
        counts = torch.tensor([int(choice.trainable.sum()) for choice in choices])
        rollouts = torch.tensor([choice.rollout for choice in choices]).repeat_interleave(counts)
        scales = torch.tensor([choice.weight for choice in choices], dtype=torch.float64)
        rollout_weights = torch.tensor([member.trajectory.weight for member in members], dtype=torch.float64)
        weights = token_weights(
            rollouts,
            scales.repeat_interleave(counts),
            rollout_weights,
            aggregation=config.loss_aggregation,
        )
        # All targets of a choice weigh the same, so the first one stands for them.
        firsts = torch.cumsum(counts, 0) - counts
        self._by_choice = {
            (choice.call_id, choice.choice): float(weights[first])
            for choice, first in zip(choices, firsts.tolist(), strict=True)
        }

    def __call__(self, row: Row) -> Tensor:
        """[N] in float32."""
        values = [self._by_choice[choice.call_id, choice.choice] for choice in row.choices]
        return torch.tensor(values, dtype=torch.float32)[row.owner]


def recorded_logprobs(row: Row) -> Tensor:
    """[N]; what the engine reported for the row's targets."""
    return gather(row, {(choice.call_id, choice.choice): choice.logprobs for choice in row.choices})


def split_evenly(members: Sequence[Member], parts: int) -> list[list[Member]]:
    """`parts` shares whose sizes differ by one at most, in order; empty shares are dropped."""
    bounds = [round(index * len(members) / parts) for index in range(parts + 1)]
    shares = [list(members[a:b]) for a, b in pairwise(bounds)]
    return [share for share in shares if share]
