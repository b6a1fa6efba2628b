"""schemathesis over the server's own OpenAPI description: whatever is sent, nothing is answered as the server's failure.

Every operation gets requests that its schema allows and requests that it does not, always the same ones. Names of
models and rollouts are put in now and then, so that the generated requests come further than the first look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from chat_kit import Served
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode

from art.server import openapi
from art.server.app import api_routes

SCHEMA = schemathesis.openapi.from_dict(openapi.describe(api_routes(), version="1"))
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
EXAMPLES = 3
"""Per operation and mode; a larger number looks harder."""
KNOWN = {"project": "tests", "name": "alpha", "model": "tests/alpha"}


@pytest.fixture(scope="module")
def fuzzed(start_art_server: Any, tiny_model_dir: Path) -> Iterator[tuple[Served, requests.Session]]:
    """A server of its own: the requests make models, keys and jobs."""
    server = start_art_server(script={"default": "ok"})
    served = Served(server, str(tiny_model_dir))
    served.register("tests", "alpha")
    with requests.Session() as session:
        session.trust_env = False
        yield served, session
    server.stop()


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
def test_no_request_is_the_servers_failure(fuzzed: tuple[Served, requests.Session], operation: Any) -> None:
    served, session = fuzzed
    rollout = served.open()["rollout_id"]
    bearer = {"Authorization": f"Bearer {served.server.admin_key}"}
    numbers = iter(range(10**6))
    for mode in GenerationMode:

        @settings(
            max_examples=EXAMPLES, derandomize=True, deadline=None, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case) -> None:
            with_known_names(case, rollout, next(numbers))
            answer = case.call(served.server.url, session=session, headers=bearer, timeout=60)
            assert answer.status_code < 500, (answer.status_code, answer.text, case.as_curl_command())

        ask()
