"""Exact sampling from logits, with each request's own stream of random numbers.

A draw takes two stages: first a block of the vocabulary, by the blocks' total probability, then a token within
the block. The result is distributed as softmax(logits / temperature), at a small part of the cost of
`torch.multinomial` over the vocabulary.

Axes: B rows (at most CHUNK_ROWS), V vocabulary, N blocks, W tokens of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from art.engine.protocol import SampleRequest

CHUNK_ROWS = 64
"""Rows handled at once: the working set of more leaves the processor's cache."""
BLOCK_WIDTH = 256
"""Tokens of a block; near the square root of usual vocabularies, where both stages cost alike."""
FIRST_CANDIDATES = 512
"""Tokens looked at first for top_p; the whole vocabulary is sorted only when they do not reach it."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Draw:
    """One sampled token of one row."""

    token: int
    logprob: float
    """log-softmax(logits / temperature), before truncation; at temperature 0 that of temperature 1. NaN when the
    model overflowed; the token means nothing then."""
    top: list[tuple[int, float]]
    forced: bool = False
    """The grammar refused the model's own draw, and this is another."""


class Constraint(Protocol):
    """Which tokens may come next in one row (art.engine.grammar)."""

    def take(self, token: int) -> bool:
        """Go on with `token` if it is allowed."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """What may be taken, [V]; nothing at all where the row cannot go on."""
        ...


def uniforms(seeds: Sequence[int], positions: Sequence[int], *, pair: int = 0) -> NDArray[np.float64]:
    """Two numbers in [0, 1) per (seed, position), a pure function of them, shape [B, 2]. Each `pair` is another two.

    SplitMix64 (Steele, Lea, Flood 2014) as a keyed counter: independent of what else is in the batch.
    """
    seed_B = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
    position_B = np.array(positions, dtype=np.uint64)
    with np.errstate(over="ignore"):
        key_B = _mix(_mix(seed_B + _GOLDEN) + position_B * _GOLDEN)
        bits_B_2 = np.stack([_mix(key_B + _GOLDEN * np.uint64(2 * pair + at)) for at in (1, 2)], axis=1)
    return (bits_B_2 >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(
    logits_B_V: Tensor,
    requests: Sequence[SampleRequest],
    positions: Sequence[int],
    constraints: Sequence[Constraint | None] = (),
) -> list[Draw]:
    """One token per row. `positions` count a request's sampled tokens from 0 and select its random numbers.

    `constraints`, one per row or none at all, are advanced by the tokens drawn. See `constrained`.
    """
    constraints = constraints or [None] * len(requests)
    draws: list[Draw] = []
    for start in range(0, len(requests), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        draws += _sample_chunk(logits_B_V[rows].float(), requests[rows], positions[rows], constraints[rows])
    return draws


def _sample_chunk(
    logits_B_V: Tensor,
    requests: Sequence[SampleRequest],
    positions: Sequence[int],
    constraints: Sequence[Constraint | None],
) -> list[Draw]:
    # Temperature 0 is greedy and reports log-probabilities at temperature 1.
    temperatures = [request.temperature or 1.0 for request in requests]
    if any(temperature != 1.0 for temperature in temperatures):
        logits_B_V = logits_B_V / logits_B_V.new_tensor(temperatures)[:, None]
    blocks = Blocks(logits_B_V)
    u_B_2 = torch.from_numpy(uniforms([request.seed for request in requests], positions)).to(
        logits_B_V.device
    )
    token_B = blocks.draw(u_B_2)
    for row, request in enumerate(requests):
        if request.temperature == 0:
            token_B[row] = logits_B_V[row].argmax()
        elif (request.top_k or request.top_p < 1) and torch.isfinite(blocks.logsumexp_B[row]):
            token_B[row] = truncated_draw(logits_B_V[row], request.top_k, request.top_p, float(u_B_2[row, 0]))
    forced = [False] * len(requests)
    if any(constraint is not None for constraint in constraints):
        # One transfer for all rows; most draws are allowed.
        drawn_B, finite_B = token_B.tolist(), torch.isfinite(blocks.logsumexp_B).tolist()
        for row, constraint in enumerate(constraints):
            if constraint is not None and finite_B[row]:
                drawn_B[row], forced[row] = constrained(
                    logits_B_V[row], drawn_B[row], requests[row], positions[row], constraint
                )
        token_B = token_B.new_tensor(drawn_B)
    logprob_B = (logits_B_V.gather(1, token_B[:, None]).squeeze(1) - blocks.logsumexp_B).tolist()
    tops = [
        _top(logits_B_V[row], blocks.logsumexp_B[row], request.top_logprobs)
        for row, request in enumerate(requests)
    ]
    # Rounding can leave a certain token a hair above 0, which no log-probability is.
    return [
        Draw(token, min(logprob, 0.0), top, other)
        for token, logprob, top, other in zip(token_B.tolist(), logprob_B, tops, forced, strict=True)
    ]


def constrained(
    logits_V: Tensor, token: int, request: SampleRequest, position: int, constraint: Constraint
) -> tuple[int, bool]:
    """(token, forced): the row's own draw where the constraint takes it, else one from what it allows.

    `logits_V` are divided by the temperature. With p the model's distribution and A the allowed tokens, a token y
    of A comes out with the probability that it is drawn at once, or that a refused one is and y follows:
    p(y) + (1 - p(A)) p(y) / p(A) = p(y) / p(A). So the result is distributed as p restricted to A, a token that is
    not forced is a draw from p itself, and the mask is only computed after a refusal. top_k and top_p cut the
    distribution that a draw is made from: first p, then p restricted to A.
    """
    if constraint.take(token):
        return token, False
    allowed_V = constraint.allowed()
    if not allowed_V.any():  # the constraint knows why
        return token, False
    refused_V = torch.from_numpy(~allowed_V).to(logits_V.device)
    masked_V = logits_V.masked_fill(refused_V, float("-inf"))
    u_B_2 = torch.from_numpy(uniforms([request.seed], [position], pair=1)).to(logits_V.device)
    if request.temperature == 0:
        token = int(masked_V.argmax())
    elif request.top_k or request.top_p < 1:
        token = truncated_draw(masked_V, request.top_k, request.top_p, float(u_B_2[0, 0]))
    else:
        token = int(Blocks(masked_V[None]).draw(u_B_2))
    constraint.take(token)
    return token, True


class Blocks:
    """Logits cut into blocks, and each block's share of the probability."""

    def __init__(self, logits_B_V: Tensor) -> None:
        rows, vocab = logits_B_V.shape
        short = -vocab % BLOCK_WIDTH
        if short:
            logits_B_V = torch.nn.functional.pad(logits_B_V, (0, short), value=float("-inf"))
        blocks_B_N_W = logits_B_V.view(rows, -1, BLOCK_WIDTH)
        maximum_B = blocks_B_N_W.amax(dim=(1, 2))
        # One maximum for the whole row: a block far below it has no probability that float32 could show.
        self._weight_B_N_W = (blocks_B_N_W - maximum_B[:, None, None]).exp_()
        self._block_weight_B_N = self._weight_B_N_W.sum(dim=2).double()
        # In float64: the difference of a large logit and a large sum is a log-probability.
        self.logsumexp_B = maximum_B.double() + self._block_weight_B_N.sum(dim=1).log()
        if not torch.isfinite(self.logsumexp_B).all():
            # A row that overflowed draws token 0 with a log-probability of NaN; the other rows are not to suffer.
            self._weight_B_N_W.nan_to_num_(0.0)
            self._block_weight_B_N = self._weight_B_N_W.sum(dim=2).double()

    def draw(self, u_B_2: Tensor) -> Tensor:
        """A token per row by inverse transform in two stages."""
        block_B = _inverse_transform(self._block_weight_B_N, u_B_2[:, 0])
        rows_B = torch.arange(len(block_B), device=block_B.device)
        within_B_W = self._weight_B_N_W[rows_B, block_B].double()
        return block_B * BLOCK_WIDTH + _inverse_transform(within_B_W, u_B_2[:, 1])


def _inverse_transform(weight_B_N: Tensor, u_B: Tensor) -> Tensor:
    """The first index whose cumulated weight exceeds u * total; never one of weight 0."""
    cumulated_B_N = weight_B_N.cumsum(dim=1)
    target_B = u_B * cumulated_B_N[:, -1]
    index_B = torch.searchsorted(cumulated_B_N, target_B[:, None], right=True).squeeze(1)
    # u * total can round up to the total itself; then the last index with any weight is meant.
    last_B = torch.searchsorted(cumulated_B_N, cumulated_B_N[:, -1:].contiguous(), right=False).squeeze(1)
    return torch.minimum(index_B, last_B)


def truncated_draw(logits_V: Tensor, top_k: int, top_p: float, u: float) -> int:
    """Sample among the top_k best tokens (0 is all), and of those the fewest that reach top_p of their probability."""
    vocab = len(logits_V)
    count = min(top_k or FIRST_CANDIDATES, vocab)
    logits_V = logits_V.double()
    best_K, token_K = logits_V.topk(count)
    weight_K = (best_K - best_K[0]).exp()
    mass = weight_K.sum() if top_k else (logits_V - best_K[0]).exp().sum()
    if weight_K.sum() < top_p * mass:
        best_K, token_K = logits_V.sort(descending=True)
        weight_K = (best_K - best_K[0]).exp()
    # A token is kept while those before it have not reached top_p; the first always is.
    before_K = weight_K.cumsum(0) - weight_K
    kept_K = torch.where(before_K < top_p * mass, weight_K, torch.zeros_like(weight_K))
    index = _inverse_transform(kept_K[None], torch.tensor([u], dtype=torch.float64, device=kept_K.device))
    return int(token_K[index])


def _top(logits_V: Tensor, logsumexp: Tensor, count: int) -> list[tuple[int, float]]:
    if not count:
        return []
    best, tokens = logits_V.topk(min(count, len(logits_V)))
    return list(zip(tokens.tolist(), (best.double() - logsumexp).clamp(max=0.0).tolist(), strict=True))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
