"""Which choices are computed together: rows of a bounded number of trie tokens."""

from __future__ import annotations

from collections.abc import Sequence

from art.tokens.samples import SampledChoice, common_prefix, depth_first


def pack(choices: Sequence[SampledChoice], *, budget: int) -> list[list[int]]:
    """Indices of `choices` in rows whose tries have at most `budget` tokens.

    Neighbours in depth-first order share the longest prefixes, so cutting that order into runs keeps them
    together; a prefix that falls on both sides of a cut is computed twice. A path longer than the budget
    gets a row of its own.
    """
    rows: list[list[int]] = []
    used = 0
    before = None
    for index in depth_first(choices):
        path = choices[index].path
        new = len(path) - (common_prefix(before, path) if before is not None else 0)
        if not rows or used + new > budget:
            rows.append([])
            used, new = 0, len(path)
        rows[-1].append(index)
        used += new
        before = path
    return rows
