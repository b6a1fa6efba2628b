"""Adapters that come and go under load: no token is of a wrong one. The long form is `make test-swaps`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from adapter_references import References
from adapter_swaps import Swaps, report

SHORT = 50


@pytest.mark.slow
def test_no_token_is_of_a_wrong_version(base: Path, tmp_path: Path) -> None:
    references = References.take(base, tmp_path / "adapters", seed=3)
    swaps = Swaps(tmp_path / "run", base, references, seed=3)
    seen = asyncio.run(swaps.run(SHORT, kills=False))
    told = report(seen, swaps=SHORT, seconds=0.0)
    print(told["figures"])
    assert all(line["ok"] for line in told["bars"]), told
    assert seen.left, "no client left in the middle"
    assert seen.churn["deleted"] or seen.churn["rolled back"]

    # It would have been noticed, and whose token it was.
    version = next(v for v, a in swaps._adapter_of.items() if a == 1)
    ours, others = references.answers[1][0], references.answers[2][0]
    at = next(place for place, (a, b) in enumerate(zip(ours, others, strict=True)) if a != b)
    swaps._compare(version, 0, at, others[at])
    assert seen.wrong[-1]["adapter"] == 1
    assert 2 in seen.wrong[-1]["of"]
