"""What every test shares. The fixtures themselves live in `art.testing.plugin`, which pytest loads by itself."""

from __future__ import annotations

import os

# No test reaches for a hub: the suite passes without a network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
# Two cores are shared by gateway, engine, trainer and pytest.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Spinning threads of several processes starve each other (see art.config.environment).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The programs of tests/clients need the environments that `make test-clients` makes.
collect_ignore = [] if "ART_CLIENTS_PYTHON" in os.environ else ["clients/test_clients.py"]
