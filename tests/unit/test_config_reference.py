"""docs/run.md holds every setting, with what the class that has it says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".ci"))

import config_reference  # noqa: E402

from art.config.load import SECTIONS  # noqa: E402


def test_the_page_is_what_the_classes_say() -> None:
    text = config_reference.FILE.read_text()
    assert config_reference.placed(text) == text, "run: python .ci/config_reference.py write"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_says_what_it_is(section: str) -> None:
    silent = [name for name, _, text in config_reference.fields(section) if len(text.split()) < 3]
    assert silent == []
