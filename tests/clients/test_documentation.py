"""docs/clients.md shows nothing but lines of the programs, which `make test-clients` runs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "clients.md"
BLOCK = re.compile(r"^```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(\.\./([^)]+)\)")


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_every_line_that_is_shown_is_run() -> None:
    sections = [part for part in PAGE.read_text().split("\n## ") if BLOCK.search(part)]
    assert len(sections) > 5
    for section in sections:
        programs = [lines((ROOT / path).read_text()) for path in LINK.findall(section)]
        for block in BLOCK.findall(section):
            assert any(set(lines(block)) <= set(program) for program in programs), block


def test_links_lead_somewhere() -> None:
    page = PAGE.read_text()
    assert all((ROOT / path).exists() for path in LINK.findall(page))
