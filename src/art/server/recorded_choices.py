"""Recorded choices, found by what they say: for those that a program hands over without their art field.

Axis legend: N recorded choices that say the same in as many tokens, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from art.server.given_choice import Essence, GivenMessage
from art.store.store import Store
from art.types.tokens import BlobRef, CallRecord

Pick = tuple[str, int]
"""(call id, choice index)."""

LOGPROB_TOLERANCE = 1e-4
"""Recorded log-probabilities are float32 and reach the program as decimal text."""


class RecordedChoices:
    """Some calls' choices. Each text and each array is read once, however many choices are looked for."""

    def __init__(self, store: Store, calls: Iterable[tuple[CallRecord, Sequence[dict[str, Any]]]]) -> None:
        """`calls`, each with its completions by choice index."""
        self._store = store
        self._by_essence: dict[Essence, list[tuple[Pick, BlobRef, int]]] = {}
        self._logprobs: dict[tuple[Essence, int], tuple[list[Pick], np.ndarray]] = {}
        for call, completions in calls:
            for item in call.choices:
                if call.blob is None or item.index >= len(completions):
                    continue
                essence = GivenMessage.model_validate(completions[item.index]).essence()
                entry = (call.call_id, item.index), call.blob, item.token_count
                self._by_essence.setdefault(essence, []).append(entry)

    async def matching(self, essence: Essence, logprobs: Sequence[float] | None) -> list[Pick]:
        """Choices that say this; with `logprobs` those that were sampled at them."""
        said = self._by_essence.get(essence, [])
        if logprobs is None or not said:
            return [pick for pick, _, _ in said]
        key = essence, len(logprobs)
        if key not in self._logprobs:
            same = [(pick, blob) for pick, blob, count in said if count == len(logprobs)]
            rows = [(await self._store.read_arrays(blob))[f"c{pick[1]}.logprobs"] for pick, blob in same]
            table_N_T = np.stack(rows) if rows else np.empty((0, len(logprobs)), dtype=np.float32)
            self._logprobs[key] = [pick for pick, _ in same], table_N_T
        picks, recorded_N_T = self._logprobs[key]
        near_N_T = np.isclose(recorded_N_T, np.asarray(logprobs), atol=LOGPROB_TOLERANCE, rtol=0)
        return [pick for pick, near_T in zip(picks, near_N_T, strict=True) if near_T.all()]
