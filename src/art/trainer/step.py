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
from art.algorithms.correction import truncation_factor
from art.algorithms.ppo_clip import clipped, ppo_clip
from art.config.train import ResolvedTrainConfig
from art.errors import TrainingFailed
from art.trainer.batch import Batch, Member
from art.trainer.forward import Policy, Row

OnRow = Callable[[int, int], None]
"""Called after each row with (rows done, rows in all); raises to stop the job."""


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
    differences: list[Tensor] = field(default_factory=list)
    """Trainer minus recorded log-probabilities of on-policy tokens, before the first update."""


class Updater:
    """Runs the optimizer updates of one job on a policy whose adapter and optimizer state are loaded."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
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

    def run(self, batch: Batch, *, before_first_update: Callable[[Tally], None]) -> Tally:
        """All updates of the job. `before_first_update` sees the parity figures and may raise.

        Raises TrainingFailed for a loss or gradient that is not finite; the caller then drops the policy's
        state, so nothing of the step remains.
        """
        shares = split_evenly(batch.trained, self._config.updates)
        plans = [(share, self._rows(share)) for share in shares]
        total = sum(len(rows) for _, rows in plans)
        tally = Tally()
        for number, (share, rows) in enumerate(plans):
            self._optimizer.zero_grad(set_to_none=True)
            weigh = _Weights(share, batch.members, self._config)
            for row in rows:
                self._backward(row, weigh, batch.members, tally, record=number == 0)
                self._on_row(tally.rows, total)
            if number == 0:
                before_first_update(tally)
            tally.grad_norms.append(self._clip())
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        tally.loss /= len(plans)
        return tally

    def _rows(self, share: Sequence[Member]) -> list[Row]:
        choices = [choice for member in share for choice in member.choices]
        return self._policy.rows(choices, budget=self._row_tokens)

    def _backward(
        self, row: Row, weigh: _Weights, members: Sequence[Member], tally: Tally, *, record: bool
    ) -> None:
        """Add one row's gradient and figures."""
        config = self._config
        device = self._policy.device
        old = recorded_logprobs(row).to(device)
        advantages = torch.tensor(
            [members[choice.rollout].advantage or 0.0 for choice in row.choices], dtype=torch.float32
        )[row.owner].to(device)
        logprobs, entropy = self._policy.logprobs(row, chunk=config.logprob_calculation_chunk_size)
        bounds = {"epsilon": config.epsilon, "epsilon_high": config.epsilon_high}
        factor = truncation_factor(logprobs, old, bound=config.truncated_importance_sampling)
        losses = ppo_clip(logprobs, old, advantages, **bounds) * factor
        loss = (losses * weigh(row).to(device)).sum()
        if not math.isfinite(value := float(loss.detach())):
            raise TrainingFailed(
                f"The loss is {value}",
                cause="a log-probability of the trainer is not finite, or differs too far from the recorded one",
                hint="lower learning_rate, or train on rollouts of the current step; nothing was published",
            )
        loss.backward()
        tally.loss += value
        tally.entropy += float(entropy.sum())
        tally.clipped += float(clipped(logprobs.detach(), old, advantages, **bounds).sum())
        tally.truncated += float((factor < 1).sum())
        tally.targets += len(old)
        tally.computed += row.trie.size
        tally.rows += 1
        if record:
            on_policy = torch.tensor([choice.on_policy for choice in row.choices])[row.owner]
            tally.differences.append((logprobs.detach().cpu() - recorded_logprobs(row))[on_policy])

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
    trie = row.trie
    recorded = torch.empty(len(trie.target), dtype=torch.float32)
    for index, choice in enumerate(row.choices):
        mine = trie.choice == index
        recorded[torch.from_numpy(mine)] = torch.from_numpy(choice.logprobs[trie.offset[mine]])
    return recorded


def split_evenly(members: Sequence[Member], parts: int) -> list[list[Member]]:
    """`parts` shares whose sizes differ by one at most, in order; empty shares are dropped."""
    bounds = [round(index * len(members) / parts) for index in range(parts + 1)]
    shares = [list(members[a:b]) for a, b in pairwise(bounds)]
    return [share for share in shares if share]
