"""schemathesis over the server's own OpenAPI description: whatever is sent, nothing is answered as the server's failure.

Every operation gets requests that its schema allows and requests that it does not. Names of models and rollouts are put
in now and then, so that the generated requests come further than the first look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuzz_kit
import pytest
import requests
import schemathesis
from chat_kit import Served
from hypothesis import given
from schemathesis import Case, GenerationMode

from art.server import openapi
from art.server.app import api_routes

SCHEMA = schemathesis.openapi.from_dict(openapi.describe(api_routes(), version="1"))
ENDLESS = {"GET /api/v1/views/events"}
"""Streams that end with the client, which is asked in test_views_detail.py."""
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations() if found.ok().label not in ENDLESS]
EXAMPLES = 3
"""Per operation and mode, in an ordinary run: what fits into 20 seconds."""
KNOWN = {"project": "tests", "name": "alpha", "model": "tests/alpha"}


@pytest.fixture(scope="module")
def fuzzed(start_art_server: Any, tiny_model_dir: Path) -> Iterator[tuple[Served, requests.Session]]:
    """A server of its own: the requests make models, keys and jobs."""
    server = start_art_server(script={"default": "ok"})
    served = Served(server, str(tiny_model_dir))
    served.register("tests", "alpha")
    with fuzz_kit.session() as session:
        yield served, session
    server.stop()
    assert fuzz_kit.tracebacks(served) == ""


def with_known_names(case: Case, rollout: str, number: int) -> None:
    """Real names instead of generated ones in two of three requests."""
    if number % 3 == 0:
        return
    for name in case.path_parameters or {}:
        if name in ("rollout", "rollout_id"):
            case.path_parameters[name] = rollout
        elif name in KNOWN:
            case.path_parameters[name] = KNOWN[name]
    if isinstance(case.body, dict):
        case.body |= {name: KNOWN[name] for name in case.body.keys() & KNOWN.keys()}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
@pytest.mark.timeout(300 + 60 * fuzz_kit.TIMES)
def test_no_request_is_the_servers_failure(fuzzed: tuple[Served, requests.Session], operation: Any) -> None:
    served, session = fuzzed
    rollout = served.open()["rollout_id"]
    bearer = {"Authorization": f"Bearer {served.server.admin_key}"}
    numbers = iter(range(10**6))
    for mode in GenerationMode:

        @fuzz_kit.fuzz(EXAMPLES)
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case) -> None:
            with_known_names(case, rollout, next(numbers))
            answer = case.call(
                served.server.url, session=session, headers=bearer, timeout=fuzz_kit.ANSWER_SECONDS
            )
            fuzz_kit.check(answer, case.as_curl_command)

        ask()
