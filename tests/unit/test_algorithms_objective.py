"""The loss of a row against its papers, written out token by token in plain Python (float64), gradients included.

What a paper stops the gradient through is held fixed; the rest of the gradient is taken by central differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from art.algorithms.kl import ESTIMATORS, k1, k2, k3
from art.algorithms.objective import Objective, Terms, Tokens
from art.algorithms.ratios import importance_ratio
from art.config.train import TrainConfig

OFF = {"truncated_importance_sampling": None}
LEVELS = ["token", "sequence", "average", "geometric_average"]


@dataclass(frozen=True)
class Case:
    """Tokens of a few completions as plain lists."""

    logprobs: list[float]
    old: list[float]
    served: list[float]
    reference: list[float]
    advantages: list[float]
    entropy: list[float]
    owner: list[int]

    def tokens(self, *, reference: bool = False) -> Tokens:
        def f64(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64)

        return Tokens(
            logprobs_N=f64(self.logprobs).requires_grad_(),
            entropy_N=f64(self.entropy).requires_grad_(),
            served_N=f64(self.served),
            old_N=f64(self.old),
            reference_N=f64(self.reference) if reference else None,
            advantages_N=f64(self.advantages),
            owner_N=torch.tensor(self.owner),
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One to three completions of one to four tokens; ratios from about 0.4 to 2.5."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    owner = [index for index, length in enumerate(lengths) for _ in range(length)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))

    def uniform(low: float, high: float, count: int = len(owner)) -> list[float]:
        return (low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)).tolist()

    logprobs = uniform(-3, -0.1)
    by_completion = uniform(-2, 2, len(lengths))
    return Case(
        logprobs=logprobs,
        old=[a - b for a, b in zip(logprobs, uniform(-0.9, 0.9), strict=True)],
        served=[a - b for a, b in zip(logprobs, uniform(-0.9, 0.9), strict=True)],
        reference=[a - b for a, b in zip(logprobs, uniform(-0.9, 0.9), strict=True)],
        advantages=[by_completion[index] for index in owner],
        entropy=uniform(0, 3),
        owner=owner,
    )


def mean_by_owner(values: list[float], owner: list[int]) -> list[float]:
    return [
        sum(value for value, other in zip(values, owner, strict=True) if other == mine)
        / sum(other == mine for other in owner)
        for mine in owner
    ]


def ratios(logprobs: list[float], old: list[float], owner: list[int], level: str) -> list[float]:
    """arXiv:1707.06347 for tokens; arXiv:2507.18071, equation 7, for sequences; and the two means of both."""
    d = [a - b for a, b in zip(logprobs, old, strict=True)]
    means = mean_by_owner(d, owner)
    return [
        {
            "token": math.exp(one),
            "sequence": math.exp(mean),
            "average": 0.5 * (math.exp(one) + math.exp(mean)),
            "geometric_average": math.sqrt(math.exp(one) * math.exp(mean)),
        }[level]
        for one, mean in zip(d, means, strict=True)
    ]


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def run(config: TrainConfig, case: Case, **options: Any) -> tuple[Terms, Tokens]:
    tokens = case.tokens(reference=config.kl_penalty_coef > 0)
    return Objective(config, **options)(tokens), tokens


def check(
    terms: Terms, tokens: Tokens, loss: Callable[[list[float]], list[float]], weights: list[float]
) -> None:
    """The values are `loss` at the tokens' log-probabilities, and the gradient of their weighted sum is its slope."""
    at = tokens.logprobs_N.tolist()
    assert terms.loss_N.tolist() == pytest.approx(loss(at), rel=1e-9, abs=1e-12)
    (terms.loss_N * torch.tensor(weights, dtype=torch.float64)).sum().backward()
    step = 1e-6
    slopes = []
    for index in range(len(at)):
        sums = []
        for sign in (1, -1):
            moved = list(at)
            moved[index] += sign * step
            sums.append(sum(w * value for w, value in zip(weights, loss(moved), strict=True)))
        slopes.append((sums[0] - sums[1]) / (2 * step))
    assert tokens.logprobs_N.grad is not None
    assert tokens.logprobs_N.grad.tolist() == pytest.approx(slopes, rel=1e-5, abs=1e-7)


def spread_weights(count: int) -> list[float]:
    """Unequal, so that a gradient in the wrong place shows."""
    return [0.5 + 0.25 * (index % 3) for index in range(count)]


def off_the_kinks(values: list[float], *kinks: float) -> None:
    """A slope is not defined at a kink."""
    assume(all(abs(value - kink) > 1e-4 for value in values for kink in kinks))


@settings(deadline=None, max_examples=40)
@given(cases(), st.sampled_from(LEVELS))
def test_ppo(case: Case, level: str) -> None:
    """-min(r A, clip(r, 1 - e, 1 + e') A): arXiv:1707.06347, equation 7, with arXiv:2503.14476's bounds."""

    def loss(logprobs: list[float]) -> list[float]:
        return [
            -min(ratio * a, clip(ratio, 0.8, 1.28) * a)
            for ratio, a in zip(ratios(logprobs, case.old, case.owner, level), case.advantages, strict=True)
        ]

    r = ratios(case.logprobs, case.old, case.owner, level)
    off_the_kinks(r, 0.8, 1.28)
    terms, tokens = run(TrainConfig(loss_fn="ppo", importance_sampling_level=level, **OFF), case)  # type: ignore[arg-type]
    check(terms, tokens, loss, spread_weights(len(r)))
    stopped = [
        (a > 0 and one > 1.28) or (a < 0 and one < 0.8) for one, a in zip(r, case.advantages, strict=True)
    ]
    assert terms.bounded_N.tolist() == stopped


@settings(deadline=None, max_examples=40)
@given(cases())
def test_gspo(case: Case) -> None:
    """The objective of one completion is min(s A, clip(s) A), arXiv:2507.18071, equation 5; a mean over its tokens is it."""
    s = ratios(case.logprobs, case.old, case.owner, "sequence")
    off_the_kinks(s, 1 - 3e-4, 1 + 4e-4)
    terms, tokens = run(TrainConfig(loss_fn="gspo", **OFF), case)
    means = [1 / case.owner.count(mine) for mine in case.owner]

    def per_completion(logprobs: list[float]) -> list[float]:
        return [
            -min(ratio * a, clip(ratio, 1 - 3e-4, 1 + 4e-4) * a)
            for ratio, a in zip(
                ratios(logprobs, case.old, case.owner, "sequence"), case.advantages, strict=True
            )
        ]

    check(terms, tokens, per_completion, means)
    # Equation 10: every token of an unclipped completion has the slope -s A / |y|.
    for index, mine in enumerate(case.owner):
        expected = 0.0 if bool(terms.bounded_N[index]) else -s[index] * case.advantages[index] * means[index]
        assert tokens.logprobs_N.grad is not None
        assert float(tokens.logprobs_N.grad[index]) == pytest.approx(expected, abs=1e-9), mine


@settings(deadline=None, max_examples=40)
@given(cases(), st.sampled_from(LEVELS))
def test_cispo(case: Case, level: str) -> None:
    """-sg(clip(r)) A logprob: arXiv:2506.13585, equation 4."""
    fixed = [clip(one, 0.3, 1.5) for one in ratios(case.logprobs, case.old, case.owner, level)]

    def loss(logprobs: list[float]) -> list[float]:
        return [-w * a * one for w, a, one in zip(fixed, case.advantages, logprobs, strict=True)]

    config = TrainConfig(
        loss_fn="cispo",
        epsilon=0.7,
        epsilon_high=0.5,
        importance_sampling_level=level,
        **OFF,  # type: ignore[arg-type]
    )
    terms, tokens = run(config, case)
    check(terms, tokens, loss, spread_weights(len(fixed)))


@settings(deadline=None, max_examples=40)
@given(cases())
def test_importance_sampling(case: Case) -> None:
    """-r A: REINFORCE with a likelihood ratio; the slope is -r A."""

    def loss(logprobs: list[float]) -> list[float]:
        return [
            -math.exp(one - old) * a for one, old, a in zip(logprobs, case.old, case.advantages, strict=True)
        ]

    terms, tokens = run(TrainConfig(loss_fn="importance_sampling", **OFF), case)
    check(terms, tokens, loss, spread_weights(len(case.owner)))
    assert not terms.bounded_N.any()


def corrected(
    case: Case, ratio: list[float], weight: list[float], kind: str, level: str, bound: float
) -> list[float]:
    """Factors of the correction where ratios are taken to what was served, by their definitions."""
    products = []
    for index, mine in enumerate(case.owner):
        parts = [one for one, other in zip(ratio, case.owner, strict=True) if other == mine]
        products.append(ratio[index] if level == "token" else math.prod(parts))
    if kind == "mask":
        return [float(1 / bound <= one <= bound) for one in products]
    used = weight if level == "token" else products
    return [min(one, bound) / one for one in used]


@pytest.mark.parametrize("name", ["ppo", "cispo", "importance_sampling"])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@settings(deadline=None, max_examples=20)
@given(case=cases())
def test_corrections(case: Case, name: str, kind: str, level: str) -> None:
    bound = 1.6
    # The weight of cispo is clipped at 1.8 already, above the bound: the bound must hold for that, not for the ratio.
    clip: dict[str, Any] = {"epsilon_high": 0.8} if name == "cispo" else {}
    plain, _ = run(TrainConfig(loss_fn=name, **clip, **OFF), case)
    ratio = ratios(case.logprobs, case.old, case.owner, "token")
    weight = [min(one, 1.8) for one in ratio] if name == "cispo" else ratio
    factors = corrected(case, ratio, weight, kind, level, bound)
    config = TrainConfig(
        loss_fn=name,
        **clip,
        truncated_importance_sampling=bound,
        importance_correction=kind,  # type: ignore[arg-type]
        importance_correction_level=level,  # type: ignore[arg-type]
    )
    terms, tokens = run(config, case)
    assert terms.loss_N.tolist() == pytest.approx(
        [factor * value for factor, value in zip(factors, plain.loss_N.tolist(), strict=True)]
    )
    assert terms.corrected_N.tolist() == [factor < 1 for factor in factors]
    # The factor has no gradient of its own: the slope is the plain one times it.
    again, plain_tokens = run(TrainConfig(loss_fn=name, **clip, **OFF), case)
    again.loss_N.sum().backward()
    terms.loss_N.sum().backward()
    assert plain_tokens.logprobs_N.grad is not None
    assert tokens.logprobs_N.grad is not None
    expected = plain_tokens.logprobs_N.grad * torch.tensor(factors, dtype=torch.float64)
    torch.testing.assert_close(tokens.logprobs_N.grad, expected)


@settings(deadline=None, max_examples=40)
@given(cases(), st.sampled_from(["truncate", "mask"]), st.sampled_from(["token", "sequence"]))
def test_the_served_difference_weighs_where_the_old_ones_are_the_trainers(
    case: Case, kind: str, level: str
) -> None:
    """min(pi_old / pi_served, C) * PPO, Yao et al. 2025; masked: the ratio within [1 / C, C] and 0 outside."""
    bound = 1.6
    plain, _ = run(TrainConfig(loss_fn="ppo", **OFF), case)
    ratio = ratios(case.old, case.served, case.owner, "token")
    products = [
        math.prod(one for one, other in zip(ratio, case.owner, strict=True) if other == mine)
        for mine in case.owner
    ]
    used = ratio if level == "token" else products
    weights = [min(one, bound) for one in used]
    if kind == "mask":
        weights = [one if 1 / bound <= one <= bound else 0.0 for one in used]
    config = TrainConfig(
        loss_fn="ppo",
        precalculate_logprobs=True,
        truncated_importance_sampling=bound,
        importance_correction=kind,  # type: ignore[arg-type]
        importance_correction_level=level,  # type: ignore[arg-type]
    )
    terms, _ = run(config, case)
    assert terms.loss_N.tolist() == pytest.approx(
        [w * value for w, value in zip(weights, plain.loss_N.tolist(), strict=True)]
    )


def test_a_long_completions_product_overflows_nothing() -> None:
    count = 2000
    case = Case([0.0] * count, [-1.0] * count, [-1.0] * count, [], [-1.0] * count, [0.0] * count, [0] * count)
    terms, tokens = run(TrainConfig(importance_correction_level="sequence"), case)
    terms.loss_N.sum().backward()
    assert tokens.logprobs_N.grad is not None
    assert torch.isfinite(tokens.logprobs_N.grad).all()
    assert (
        float(tokens.logprobs_N.grad.abs().max()) < 1e-12
    )  # e ** 2000 times too likely: it counts for nothing


@settings(deadline=None, max_examples=40)
@given(cases(), st.floats(0.5, 2))
def test_negative_advantages_have_a_bound_of_their_own(case: Case, most: float) -> None:
    plain, _ = run(TrainConfig(loss_fn="importance_sampling", **OFF), case)
    config = TrainConfig(
        loss_fn="importance_sampling", max_negative_advantage_importance_sampling_weight=most, **OFF
    )
    terms, _ = run(config, case)
    ratio = ratios(case.logprobs, case.old, case.owner, "token")
    expected = [
        value * (min(one, most) / one if a < 0 else 1.0)
        for value, one, a in zip(plain.loss_N.tolist(), ratio, case.advantages, strict=True)
    ]
    assert terms.loss_N.tolist() == pytest.approx(expected)


@settings(deadline=None, max_examples=40)
@given(cases())
def test_mask_prob_ratio_leaves_out_what_is_outside_the_clip(case: Case) -> None:
    plain, _ = run(TrainConfig(loss_fn="cispo", epsilon=0.2, epsilon_high=0.28, **OFF), case)
    config = TrainConfig(loss_fn="cispo", epsilon=0.2, epsilon_high=0.28, mask_prob_ratio=True, **OFF)
    terms, _ = run(config, case)
    ratio = ratios(case.logprobs, case.old, case.owner, "token")
    expected = [
        value if 0.8 <= one <= 1.28 else 0.0 for value, one in zip(plain.loss_N.tolist(), ratio, strict=True)
    ]
    assert terms.loss_N.tolist() == pytest.approx(expected)


@settings(deadline=None, max_examples=40)
@given(cases(), st.floats(0, 1))
def test_kimis_tau_pulls_back_what_has_moved(case: Case, tau: float) -> None:
    """-r (A - tau log r), the bracket without a gradient."""
    fixed = [
        a - tau * (one - old) for a, one, old in zip(case.advantages, case.logprobs, case.old, strict=True)
    ]

    def loss(logprobs: list[float]) -> list[float]:
        return [-math.exp(one - old) * a for one, old, a in zip(logprobs, case.old, fixed, strict=True)]

    terms, tokens = run(TrainConfig(loss_fn="importance_sampling", kimi_k2_tau=tau, **OFF), case)
    check(terms, tokens, loss, spread_weights(len(fixed)))


def kl_by_hand(name: str, logprob: float, reference: float) -> float:
    """Schulman 2020, with r = p_reference / p."""
    r = math.exp(reference - logprob)
    return {"k1": -math.log(r), "k2": math.log(r) ** 2 / 2, "k3": (r - 1) - math.log(r)}[name]


@settings(deadline=None, max_examples=40)
@given(cases(), st.sampled_from(["k2", "k3"]))
def test_the_divergence_as_a_loss(case: Case, name: str) -> None:
    def loss(logprobs: list[float]) -> list[float]:
        return [
            -math.exp(one - old) * a + 0.3 * kl_by_hand(name, one, reference)
            for one, old, a, reference in zip(
                logprobs, case.old, case.advantages, case.reference, strict=True
            )
        ]

    config = TrainConfig(
        loss_fn="importance_sampling",
        kl_penalty_coef=0.3,
        kl_penalty="loss",
        kl_estimator=name,
        **OFF,  # type: ignore[arg-type]
    )
    terms, tokens = run(config, case)
    check(terms, tokens, loss, spread_weights(len(case.owner)))


@settings(deadline=None, max_examples=40)
@given(cases(), st.sampled_from(["k1", "k2", "k3"]))
def test_the_divergence_as_a_reward(case: Case, name: str) -> None:
    """Each token pays for having been likelier than under the reference when it was sampled, less the mean."""
    paid = [kl_by_hand(name, old, ref) for old, ref in zip(case.old, case.reference, strict=True)]
    mean = sum(paid) / len(paid)
    fixed = [a + 0.3 * (mean - kl) for a, kl in zip(case.advantages, paid, strict=True)]

    def loss(logprobs: list[float]) -> list[float]:
        return [-math.exp(one - old) * a for one, old, a in zip(logprobs, case.old, fixed, strict=True)]

    config = TrainConfig(loss_fn="importance_sampling", kl_penalty_coef=0.3, kl_estimator=name, **OFF)  # type: ignore[arg-type]
    terms, tokens = run(config, case, mean_kl=mean)
    check(terms, tokens, loss, spread_weights(len(case.owner)))


def test_the_estimators_are_the_divergence_on_average() -> None:
    """Two distributions over five tokens: sums over p are the exact KL for k1 and k3, and k2 is near it."""
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.rand(5, generator=generator, dtype=torch.float64).log_softmax(0) for _ in range(2))
    exact = float((p.exp() * (p - q)).sum())
    assert float((p.exp() * k1(p, q)).sum()) == pytest.approx(exact)
    assert float((p.exp() * k3(p, q)).sum()) == pytest.approx(exact)
    assert float((p.exp() * k2(p, q)).sum()) == pytest.approx(exact, rel=0.2)
    assert set(ESTIMATORS) == {"k1", "k2", "k3"}


def test_the_slope_of_k2_is_the_divergences_and_k1s_is_none() -> None:
    """arXiv:2506.09477: on average over the policy's samples, d k1 vanishes and d k2 is d KL."""
    logits = torch.tensor([0.3, -0.2, 1.0, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, 0.5, 0.2, -0.4], dtype=torch.float64).log_softmax(0)
    logprobs = logits.log_softmax(0)
    p = logprobs.detach().exp()
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True)
    (by_k1,) = torch.autograd.grad((p * k1(logprobs, reference)).sum(), logits, retain_graph=True)
    (by_k2,) = torch.autograd.grad((p * k2(logprobs, reference)).sum(), logits)
    torch.testing.assert_close(by_k1, torch.zeros_like(exact), atol=1e-12, rtol=0)
    torch.testing.assert_close(by_k2, exact)


@settings(deadline=None, max_examples=40)
@given(cases())
def test_the_entropy_bonus_lowers_the_loss(case: Case) -> None:
    plain, _ = run(TrainConfig(), case)
    terms, tokens = run(TrainConfig(entropy_coef=0.05), case)
    expected = [value - 0.05 * h for value, h in zip(plain.loss_N.tolist(), case.entropy, strict=True)]
    assert terms.loss_N.tolist() == pytest.approx(expected)
    terms.loss_N.sum().backward()
    assert tokens.entropy_N.grad is not None
    assert tokens.entropy_N.grad.tolist() == pytest.approx([-0.05] * len(case.owner))


def test_the_order_of_completions_does_not_matter() -> None:
    """Owners need not be sorted: a trie's targets come in the order of its choices."""
    d = torch.tensor([0.1, 0.4, -0.2, 0.3], dtype=torch.float64)
    owner = torch.tensor([1, 0, 1, 0])
    found = importance_ratio(d, owner, "sequence").tolist()
    assert found == pytest.approx([math.exp(-0.05), math.exp(0.35), math.exp(-0.05), math.exp(0.35)])


def test_dapo_is_ppo_with_clip_higher_and_a_mean_over_tokens() -> None:
    """What the options are called there; the mean is aggregation.py's."""
    config = TrainConfig(loss_fn="ppo", loss_aggregation="token")
    assert config.clip == (0.2, 0.28)
