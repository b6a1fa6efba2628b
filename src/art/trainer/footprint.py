"""What a token keeps in memory between its forward and its backward pass, measured.

Counted are the bytes that autograd saves, on rows too short to cost anything, and not what the process takes: that
depends on the allocator and on what ran before, and a run could not be repeated by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from art.tokens.samples import SampledChoice
from art.trainer.forward import Policy, make_row
from art.trainer.memory import Footprint

SHORT, LONG = 16, 32
"""Tokens of the sequences that are measured on. The difference of two counts is free of what is kept only once."""


def footprint(policy: Policy) -> Footprint:
    """Of a policy as it computes now; measured once, with tries and without."""
    known = policy.known.footprints
    if policy.tree not in known:
        known[policy.tree] = _measure(policy)
    return known[policy.tree]


def saved_bytes(compute: Callable[[], object]) -> int:
    """Bytes of the distinct storages that autograd would keep of `compute` for its backward pass.

    Nothing is kept of it: the graph it builds cannot be gone through.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        # Held until all are counted: the address of a freed one would be given out again.
        storages[storage.data_ptr()] = storage

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, _never):
        compute()
    return sum(storage.nbytes() for storage in storages.values())


def _never(nothing: object) -> torch.Tensor:
    raise AssertionError("a graph that was only counted has no backward pass")


def _measure(policy: Policy) -> Footprint:
    body, before = policy.body, policy.body.checkpointing
    try:
        body.checkpointing = False
        plain = _per_token(policy)
        body.checkpointing = body.layers > 0
        return Footprint.of(plain=plain, between=_per_token(policy), layers=body.layers)
    finally:
        body.checkpointing = before


def _per_token(policy: Policy) -> float:
    """Bytes that one token more keeps."""
    counts = []
    for length in (SHORT, LONG):
        # A fork is the dearer case: it has another attention than a single sequence.
        sequences = [_sequence(length, token) for token in ((0, 1) if policy.tree else (0,))]
        row = make_row(sequences, policy.device)
        counts.append((row.trie.size, saved_bytes(partial(policy.logprobs, row, chunk=LONG))))
    (few, less), (many, more) = counts
    return (more - less) / (many - few)


def _sequence(length: int, token: int) -> SampledChoice:
    """A prompt of one token and `length` sampled ones, all trained."""
    return SampledChoice(
        call_id=f"measured-{token}",
        choice=0,
        rollout=0,
        prompt=np.zeros(1, dtype=np.int64),
        completion=np.full(length, token, dtype=np.int64),
        logprobs=np.zeros(length, dtype=np.float32),
        trainable=np.ones(length, dtype=np.bool_),
        temperature=1.0,
    )
