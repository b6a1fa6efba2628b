"""The fenced code blocks of the documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/training.md",
    "docs/algorithms.md",
    "docs/server.md",
    "docs/capture.md",
    "docs/responses.md",
    "docs/anthropic.md",
    "docs/structured-output.md",
    "docs/rollouts.md",
    "docs/upstreams.md",
    "docs/pipeline.md",
    "docs/sft.md",
    "docs/learning.md",
    "docs/evaluation.md",
    "docs/doctor.md",
    "docs/deterministic.md",
    "docs/security.md",
    "docs/agents-that-act.md",
    "docs/supply-chain.md",
    "docs/load.md",
    "docs/failures.md",
    "docs/dashboard.md",
    "docs/reward-bug.md",
    "docs/run.md",
    "docs/sensitive-data.md",
    "docs/metrics.md",
    "docs/export.md",
    "docs/cli.md",
    "docs/trackers.md",
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block: its file, its language ("" for a drawing) and its text."""

    file: str
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.file}: {self.text.strip().splitlines()[0][:50]}"


def blocks(*languages: str) -> list[Block]:
    """All blocks of these languages, file by file."""
    found = [
        Block(file, match[1], match[2])
        for file in FILES
        for match in _FENCE.finditer((ROOT / file).read_text())
    ]
    return [block for block in found if block.language in languages]
