"""What every test shares. The fixtures themselves live in `art.testing.plugin`, which pytest loads by itself."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

# No test reaches for a hub: the suite passes without a network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
# Two cores are shared by gateway, engine, trainer and pytest.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Spinning threads of several processes starve each other (see art.config.environment).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Other libraries live in environments of their own, which `make test-clients` and `make test-trl` make.
collect_ignore = [
    file
    for variable, file in (
        ("ART_CLIENTS_PYTHON", "clients/test_clients.py"),
        ("ART_TRL_PYTHON", "training/test_trl_anew.py"),
    )
    if variable not in os.environ
]

ABSENT = "absent: "


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """`@pytest.mark.absent(condition, reason="what is lacking")`: where the condition holds, the test cannot run here."""
    for mark in item.iter_markers("absent"):
        (lacking,) = mark.args
        if lacking:
            pytest.skip(ABSENT + mark.kwargs["reason"])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many tests could not run here, and for want of what: a run that looks whole must be whole."""
    reasons = [str(report.longrepr[-1]) for report in terminalreporter.stats.get("skipped", [])]
    lacking = Counter(text.partition(ABSENT)[2] for text in reasons if ABSENT in text)
    for reason, count in lacking.items():
        terminalreporter.write_line(f"absent: {reason} ({count} tests could not run)", yellow=True)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch computes on one thread: sums come in one order, and files run side by side."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
