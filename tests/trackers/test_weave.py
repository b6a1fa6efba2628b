"""Weave: what its trace server receives, from Weave's own binding of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_kit import BEGAN, SECRET, Loopback, batch, loopback, run_info, tell

from art.errors import ConfigError
from art.integrations.registry import make

COMPLETE = "/v2/acme/weather/calls/complete"
WANDB = {
    "project": {"name": "weather"},
    "upsertModel": {"model": {"name": "weather", "description": ""}},
    "viewer": {"username": "someone", "defaultEntity": {"name": "acme"}},
}
"""What W&B's GraphQL says of the project and of whom the key belongs to."""


def answers(asked: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, str]:
    answer: dict[str, Any] = {"data": WANDB} if asked.endswith("/graphql") else {}
    return 200, json.dumps(answer).encode(), "application/json"


@pytest.fixture
def weave(at_home: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    with loopback(answers) as server:
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WF_TRACE_SERVER_URL", server.url)
        yield server


def calls_of(server: Loopback) -> list[dict[str, Any]]:
    return [call for body, _ in server.sent(COMPLETE) for call in json.loads(body)["batch"]]


def test_a_rollout_is_a_tree_of_calls_with_its_reward(weave: Loopback, tmp_path: Path) -> None:
    tell({"name": "weave", "project": "acme/weather", "content": True}, tmp_path)
    calls = calls_of(weave)
    roots = [call for call in calls if call["parent_id"] is None]
    assert [(one["output"]["reward"], one["id"] == one["trace_id"]) for one in roots] == [
        (0.0, True),
        (1.0, True),
    ]
    first = [call for call in calls if call["parent_id"] == roots[0]["id"]]
    assert [call["op_name"] for call in first] == ["chat", "execute_tool", "chat"]
    assert {call["trace_id"] for call in first} == {roots[0]["trace_id"]}
    chat, tool, _ = first
    assert chat["summary"]["usage"]["weather/agent-001"] == {
        "input_tokens": 12,
        "output_tokens": 5,
        "requests": 1,
    }
    assert SECRET in chat["inputs"]["input"]
    assert tool["output"]["output"] == SECRET
    assert tool["started_at"] == "2026-09-21T14:13:21+00:00", BEGAN
    assert roots[0]["attributes"]["art"]["art.step"] == 1


def test_content_is_sent_only_when_asked_for(weave: Loopback, tmp_path: Path) -> None:
    tell({"name": "weave", "project": "acme/weather"}, tmp_path)
    assert len(calls_of(weave)) == 8
    assert SECRET not in str(weave.requests)


def test_a_programs_own_sdks_are_not_patched(weave: Loopback, tmp_path: Path) -> None:
    """`weave.init` would: what the program says to other models would be sent too."""
    import openai

    before = openai.resources.chat.completions.Completions.create
    tell({"name": "weave", "project": "acme/weather"}, tmp_path)
    assert openai.resources.chat.completions.Completions.create is before
    from weave.trace.context.weave_client_context import get_weave_client

    assert get_weave_client() is None
    assert "sentry_sdk" not in sys.modules or _reports_to_nobody()


def _reports_to_nobody() -> bool:
    from weave.telemetry.trace_sentry import global_trace_sentry

    return bool(global_trace_sentry._disabled)


def test_the_models_entity_is_the_default(weave: Loopback, tmp_path: Path) -> None:
    tracker = make("weave")
    tracker.start(run_info(tmp_path, entity="acme"))
    tracker.rollouts(batch(content=False))
    assert len(calls_of(weave)) == 8


def test_without_a_key_it_is_refused_and_asks_nobody(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Weave has no key"):
        make("weave").start(run_info(tmp_path))
