"""What every test shares. The fixtures themselves live in `art.testing.plugin`, which pytest loads by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch computes on one thread: sums come in one order, and files run side by side."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
