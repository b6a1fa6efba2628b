"""Our functions on the inputs of a case of TRL's (benchmarks/peers/trl_losses.py), and the conversions between the two.

TRL's definitions differ from the papers' and from ours in a few constants. Each difference is converted by its formula:

- standard deviations: TRL divides by s + 1e-4 with s over G - 1, we by the deviation over G, and without a constant;
- `scale_rewards="batch"` divides by the deviation of the raw rewards of the batch, our `reinforce++` by that of the
  rewards less their groups' means; RLOO's `normalize_advantages` divides by the deviation of its advantages;
- `dr_grpo` divides the sum over tokens by completions times the longest length, `luspo` by completions, our
  `loss_aggregation="token"` by the tokens;
- `epsilon_high` of `cispo` is the upper bound itself, ours lies above 1 by as much.

TRL multiplies its KL penalty by the ratio unless `use_bias_correction_kl` is off; we do not, so the cases have it off.

Axes: G rollouts of one group, B of all, N trained tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from art.algorithms.advantages import compare
from art.algorithms.aggregation import token_weights
from art.algorithms.kl import k1
from art.algorithms.objective import Objective, Tokens
from art.config.train import TrainConfig

TRL_CONSTANT = 1e-4
"""Added to every standard deviation that TRL divides by."""


@dataclass(frozen=True, slots=True)
class Found:
    """What either side makes of a case; [N] in the order of completions and their trained tokens."""

    advantages_B: Tensor
    loss: Tensor | None = None
    gradient_N: Tensor | None = None
    entropy_gradient_N: Tensor | None = None

    def figures(self) -> Iterator[tuple[str, Tensor]]:
        """Those that there are, by name."""
        for name in ("advantages_B", "loss", "gradient_N", "entropy_gradient_N"):
            value = getattr(self, name)
            if value is not None:
                yield name, value


def theirs(case: Mapping[str, Any]) -> Found:
    """TRL's, as it was stored."""
    found, trained = case["found"], case["inputs"]["trained"]
    return Found(
        torch.tensor(found["advantages"], dtype=torch.float64),
        torch.tensor(found["loss"], dtype=torch.float64) if "loss" in found else None,
        flat(found["gradient"], trained) if "gradient" in found else None,
        flat(found["entropy_gradient"], trained) if "entropy_gradient" in found else None,
    )


def ours(case: Mapping[str, Any], *, max_completion_length: int, **changed: Any) -> Found:
    """Ours, in TRL's units. `changed` are options of `TrainConfig` that replace those which mean the same as TRL's."""
    options, inputs = case["options"], case["inputs"]
    config = TrainConfig(**{**config_of(case["trainer"], options), **changed})
    advantages_B = advantages(config, case["trainer"], options, inputs)
    if case["trainer"] == "rloo":
        return Found(advantages_B)
    trained = inputs["trained"]
    owner_N = torch.tensor([index for index, row in enumerate(trained) for own in row if own])
    logprobs_N = flat(inputs["logprobs"], trained).requires_grad_()
    entropy_N = flat(inputs["entropy"], trained).requires_grad_()
    on_policy = options.get("num_iterations") == 1
    terms = Objective(config)(
        Tokens(
            logprobs_N=logprobs_N,
            entropy_N=entropy_N,
            served_N=flat(inputs["served"], trained),
            old_N=logprobs_N.detach() if on_policy else flat(inputs["old"], trained),
            reference_N=flat(inputs["reference"], trained) if options.get("beta") else None,
            advantages_N=advantages_B[owner_N],
            owner_N=owner_N,
        )
    )
    count, rollouts = len(owner_N), len(trained)
    weights_N = token_weights(
        owner_N, torch.ones(count), torch.ones(rollouts), aggregation=config.loss_aggregation
    )
    unit = {"dr_grpo": count / (rollouts * max_completion_length), "luspo": count / rollouts}
    loss = (weights_N * terms.loss_N).sum() * unit.get(options["loss_type"], 1.0)
    loss.backward()  # type: ignore[no-untyped-call]
    return Found(
        advantages_B,
        loss.detach(),
        logprobs_N.grad,
        entropy_N.grad if "entropy_coef" in options else None,
    )


def config_of(trainer: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ours that mean what TRL's do."""
    if trainer == "rloo":
        return {"advantages": "reinforce++" if options.get("normalize_advantages") else "rloo"}
    scaled = {"group": "grpo", "none": "dr_grpo", "batch": "reinforce++"}
    chosen: dict[str, Any] = {"advantages": scaled[options.get("scale_rewards", "group")]}
    loss_type = options["loss_type"]
    sequence = options.get("importance_sampling_level") == "sequence"
    chosen["loss_aggregation"] = "rollout" if loss_type == "grpo" else "token"
    if loss_type == "cispo":
        chosen |= {"loss_fn": "cispo", "epsilon": 1.0, "epsilon_high": options["epsilon_high"] - 1}
    else:
        epsilon = options["epsilon"]
        chosen |= {"loss_fn": "gspo" if sequence else "ppo", "epsilon": epsilon}
        chosen["epsilon_high"] = options.get("epsilon_high", epsilon)
    if "beta" in options:
        chosen |= {"kl_penalty_coef": options["beta"], "kl_penalty": "loss", "kl_estimator": "k3"}
    if "entropy_coef" in options:
        chosen["entropy_coef"] = options["entropy_coef"]
    chosen["truncated_importance_sampling"] = options.get("vllm_importance_sampling_clip_max")
    if mode := options.get("vllm_importance_sampling_mode"):
        level, _, kind = mode.partition("_")
        chosen |= {"precalculate_logprobs": True, "importance_correction": kind}
        chosen["importance_correction_level"] = level
    return chosen


def advantages(
    config: TrainConfig, trainer: str, options: Mapping[str, Any], inputs: Mapping[str, Any]
) -> Tensor:
    """Of all rollouts, [B], in TRL's units."""
    rewards_B = torch.tensor(inputs["rewards"], dtype=torch.float64)
    if trainer == "rloo" and "beta" in options:  # the penalty is a part of the reward
        strayed = [
            float(
                k1(torch.tensor(old, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)).sum()
            )
            for old, reference in zip(inputs["old"], inputs["reference"], strict=True)
        ]
        rewards_B = rewards_B - options["beta"] * torch.tensor(strayed, dtype=torch.float64)
    groups = list(rewards_B.split(inputs["group_size"]))
    found = compare(config.advantages, groups, normalize=config.normalizes)
    if config.advantages == "grpo":
        return torch.cat(
            [
                ours_G * deviation(group) / trl_deviation(group)
                for ours_G, group in zip(found, groups, strict=True)
            ]
        )
    if config.advantages != "reinforce++":
        return torch.cat(found)
    centred_B = torch.cat([group - group.mean() for group in groups])
    if trainer == "grpo":
        return torch.cat(found) * deviation(centred_B) / trl_deviation(rewards_B)
    leave_one_out_B = centred_B * inputs["group_size"] / (inputs["group_size"] - 1)
    return torch.cat(found) * deviation(leave_one_out_B) / trl_deviation(leave_one_out_B)


def deviation(values: Tensor) -> float:
    """Divided by as many as there are."""
    return float(values.std(correction=0))


def trl_deviation(values: Tensor) -> float:
    """What TRL divides by: the deviation with one fewer in its divisor, and a constant."""
    return deviation(values) * math.sqrt(len(values) / (len(values) - 1)) + TRL_CONSTANT


def flat(rows: Sequence[Sequence[float]], trained: Sequence[Sequence[bool]]) -> Tensor:
    """The numbers of the trained tokens, [N] in float64."""
    values = [
        value
        for row, own in zip(rows, trained, strict=True)
        for value, taken in zip(row, own, strict=True)
        if taken
    ]
    return torch.tensor(values, dtype=torch.float64)
