"""What the two fuzz tests share: how hard they look, and what no answer may be.

In every run of the tests a few requests are sent, always the same ones. `make fuzz` sends thousands, from another seed each
time, and prints the seed: `make fuzz EXAMPLES=50 SEED=1` says how many and which.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import requests
from chat_kit import Served
from hypothesis import HealthCheck, Phase, settings

TIMES = int(os.environ.get("ART_FUZZ_TIMES", "1"))
"""How many times as many requests as an ordinary run sends."""
SEED = int(os.environ.get("ART_FUZZ_SEED", "0"))
ANSWER_SECONDS = 60
"""What takes longer hangs."""
FAILURES = ('"code":"infra_error"', '"code": "infra_error"', '"code":"worker_died"')
"""What a stream that began well may not end with."""

Property = Callable[..., None]


def fuzz(examples: int) -> Callable[[Property], Property]:
    """A hypothesis test of `examples` requests, or as many times more as were asked for."""

    def decorate(test: Property) -> Property:
        bounded = settings(
            max_examples=examples * TIMES, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        return hypothesis.seed(SEED)(bounded(test))

    return decorate


def check(answer: Any, request: Callable[[], str]) -> None:
    """AssertionError with the request for a failure of the server's, in the status or in the stream.

    `answer` is one of requests or of schemathesis, whose headers are lists. `request` says what was sent.
    """
    assert answer.status_code < 500, (answer.status_code, answer.text, request())
    if "text/event-stream" in str(answer.headers.get("content-type")):
        assert not any(sign in answer.text for sign in FAILURES), (answer.text, request())


def tracebacks(served: Served) -> str:
    """The last of what the gateway's log has of failures that nobody foresaw; empty where there is none."""
    log = Path(served.server.path, "server", "logs", "gateway.log")
    text = log.read_text(errors="replace") if log.exists() else ""
    return text[max(0, text.rindex("Traceback") - 500) :][:5000] if "Traceback" in text else ""


def session() -> requests.Session:
    """A client that ignores what the environment says about proxies."""
    found = requests.Session()
    found.trust_env = False
    return found
