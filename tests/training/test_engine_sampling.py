"""Sampling: the right distribution, and draws that depend on nothing but the request."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_kit import load, make_model, prompts, reference_logprobs, run

from art.engine.protocol import SampleRequest
from art.engine.torch.sampler import BLOCK_WIDTH, Blocks, sample, uniforms

DRAWS = 40_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return make_model(folder)


def frequencies(logits_V: torch.Tensor, **settings: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How often each token is drawn in DRAWS draws."""
    rows = 500
    counts = np.zeros(len(logits_V), dtype=np.int64)
    for start in range(0, DRAWS, rows):
        requests = [SampleRequest([0], seed=seed, **settings) for seed in range(start, start + rows)]
        draws = sample(logits_V.repeat(rows, 1), requests, [3] * rows)
        counts += np.bincount([draw.token for draw in draws], minlength=len(logits_V))
    return counts


def chi_square_z(counts: np.ndarray[Any, Any], expected_p: np.ndarray[Any, Any]) -> float:
    """How many standard deviations Pearson's statistic lies above its mean (rare tokens pooled)."""
    order = np.argsort(-expected_p)
    expected, observed = expected_p[order] * counts.sum(), counts[order].astype(float)
    common = expected >= 5
    if not common.all():
        expected = np.append(expected[common], expected[~common].sum())
        observed = np.append(observed[common], observed[~common].sum())
    kept = expected > 0
    assert observed[~kept].sum() == 0
    expected, observed = expected[kept], observed[kept]
    freedom = len(expected) - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def truncated(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> np.ndarray[Any, Any]:
    """The distribution meant: temperature, then the k best, then the fewest that reach top_p of those."""
    p = (logits.double() / temperature).softmax(-1)
    order = p.argsort(descending=True)
    keep = torch.zeros_like(p, dtype=torch.bool)
    best = order[: top_k or len(p)]
    mass = 0.0
    for token in best.tolist():
        if mass >= top_p * float(p[best].sum()):
            break
        keep[token] = True
        mass += float(p[token])
    p = torch.where(keep, p, 0.0)
    return np.asarray((p / p.sum()).tolist())


@pytest.mark.parametrize("vocab", [7, BLOCK_WIDTH, 3 * BLOCK_WIDTH + 11])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
def test_the_distribution_is_softmax(vocab: int, temperature: float) -> None:
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab)) * 2
    counts = frequencies(logits, temperature=temperature)
    assert abs(chi_square_z(counts, truncated(logits, temperature, 0, 1.0))) < 5


@pytest.mark.parametrize(
    ("top_k", "top_p", "temperature"),
    [(3, 1.0, 1.0), (0, 0.8, 1.0), (5, 0.7, 1.3), (0, 0.999, 2.0), (600, 0.95, 1.0)],
)
def test_truncation_keeps_the_right_tokens(
    top_k: int, top_p: float, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_engine_sampling.DRAWS", 4000)
    logits = torch.randn(700, generator=torch.Generator().manual_seed(1)) * 2
    expected = truncated(logits, temperature, top_k, top_p)
    counts = frequencies(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    assert counts[expected == 0].sum() == 0
    assert abs(chi_square_z(counts, expected)) < 5


def test_logprobs_are_those_before_truncation() -> None:
    logits = torch.randn(4, 900, generator=torch.Generator().manual_seed(2)) * 3
    requests = [
        SampleRequest([0], temperature=0.0),
        SampleRequest([0], temperature=0.6, top_k=1),
        SampleRequest([0], temperature=1.0, top_p=0.01),
        SampleRequest([0], temperature=2.0, seed=9),
    ]
    draws = sample(logits, requests, [0] * 4)
    assert [draw.token for draw in draws[:3]] == logits.argmax(-1).tolist()[:3]
    for row, temperature in enumerate((1.0, 0.6, 1.0, 2.0)):
        expected = (logits[row] / temperature).log_softmax(-1)[draws[row].token]
        assert draws[row].logprob == pytest.approx(float(expected), abs=1e-5)


def test_extreme_logits_are_exact() -> None:
    logits = torch.full((3, 600), -40.0)
    logits[0, 599] = 40.0
    logits[1, 0] = 1e4
    logits[2] = -1e4
    requests = [SampleRequest([0], seed=seed) for seed in range(3)]
    draws = sample(logits, requests, [0] * 3)
    assert [draw.token for draw in draws[:2]] == [599, 0]
    assert draws[0].logprob == draws[1].logprob == 0.0
    assert draws[2].logprob == pytest.approx(-math.log(600), abs=1e-5)
    assert draws[2].token < 600


def test_a_number_near_one_never_picks_an_impossible_token() -> None:
    logits = torch.tensor([[0.0, 0.0, float("-inf"), float("-inf")]])
    last = Blocks(logits).draw(torch.tensor([[1 - 2**-53, 1 - 2**-53]], dtype=torch.float64))
    first = Blocks(logits).draw(torch.zeros(1, 2, dtype=torch.float64))
    assert (last.tolist(), first.tolist()) == ([1], [0])


def test_uniforms_are_uniform_and_keyed() -> None:
    u = uniforms(list(range(-500, 500)) * 20, [position for position in range(20) for _ in range(1000)])
    assert u.min() >= 0
    assert u.max() < 1
    flat = u.reshape(-1)
    counts = np.histogram(flat, bins=50, range=(0, 1))[0]
    assert abs(chi_square_z(counts, np.full(50, 1 / 50))) < 5
    assert abs(np.corrcoef(u[:, 0], u[:, 1])[0, 1]) < 0.03
    assert len(np.unique(flat)) == len(flat)
    assert np.array_equal(uniforms([7, 2**70 + 7], [3, 3])[0], uniforms([2**64 + 7], [3])[0])


def test_a_seed_gives_the_same_tokens_in_any_company(folder: Path, model: Any) -> None:
    (prompt, other) = prompts(30, 45)
    mine = SampleRequest(prompt, max_tokens=30, seed=11)
    (alone,) = run(load(folder), mine)
    company = [SampleRequest(other, max_tokens=20 + seed, seed=seed, temperature=1.3) for seed in range(6)]
    crowd = run(load(folder), *company[:3], mine, *company[3:])
    assert crowd[3].token_ids == alone.token_ids
    assert crowd[3].logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    assert len({tuple(choice.token_ids[:10]) for choice in crowd}) == 7


def test_sampled_logprobs_equal_a_plain_forward(folder: Path, model: Any) -> None:
    asked = prompts(10, 70, 33)
    requests = [
        SampleRequest(prompt, max_tokens=40, seed=i, temperature=temperature)
        for i, (prompt, temperature) in enumerate(zip(asked, (1.0, 0.7, 1.5), strict=True))
    ]
    for request, choice in zip(requests, run(load(folder), *requests), strict=True):
        expected = reference_logprobs(model, request.prompt_token_ids, choice.token_ids, request.temperature)
        assert (expected - torch.tensor(choice.logprobs)).abs().mean() <= 1e-4


def test_first_tokens_follow_the_models_distribution(folder: Path, model: Any) -> None:
    (prompt,) = prompts(25)
    engine = load(folder, max_batch=64)
    choices = run(engine, *[SampleRequest(prompt, max_tokens=1, seed=seed) for seed in range(3000)])
    counts = np.bincount([choice.token_ids[0] for choice in choices], minlength=300)
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1]
    assert abs(chi_square_z(counts, truncated(logits, 1.0, 0, 1.0))) < 5
