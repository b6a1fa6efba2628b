"""Langfuse: what its ingestion receives, over OTLP and as scores, with the SDK's own API client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_kit import SECRET, Loopback, loopback, tell
from test_otel import attributes, decoded

from art.errors import ConfigError, InfraError
from art.integrations.registry import make

TRACES = "/api/public/otel/v1/traces"
SCORES = "/api/public/scores"
REJECTED = {"accepted": 1, "rejected": 1, "errors": []}


def answers(asked: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, str]:
    """As Langfuse: who has no key is refused."""
    expected = "Basic " + base64.b64encode(b"pk-lf-1:sk-lf-1").decode()
    if headers.get("authorization") != expected:
        return 401, b"{}", "application/json"
    if asked.partition(" ")[2].startswith(SCORES):
        assert isinstance(json.loads(body), list)
        return 202, b'{"message": "Accepted"}', "application/json"
    return 200, b"", "application/x-protobuf"


@pytest.fixture(autouse=True)
def keys(at_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-lf-1")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-lf-1")


@pytest.fixture
def langfuse() -> Iterator[Loopback]:
    with loopback(answers) as server:
        yield server


def spans_of(server: Loopback) -> list[Any]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return [
        span
        for request in decoded(ExportTraceServiceRequest, server.sent(TRACES))
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_a_rollout_is_a_trace_of_observations_with_its_reward_as_a_score(
    langfuse: Loopback, tmp_path: Path
) -> None:
    tell({"name": "langfuse", "base_url": langfuse.url, "environment": "ci", "content": True}, tmp_path)
    spans = spans_of(langfuse)
    said = [attributes(span.attributes) for span in spans]
    assert [one["langfuse.observation.type"] for one in said[:4]] == [
        "generation",
        "tool",
        "generation",
        "agent",
    ]
    assert {one["langfuse.trace.name"] for one in said} == {"weather/agent-001"}
    assert {one["langfuse.environment"] for one in said} == {"ci"}
    assert [one["session.id"] for one in said] == ["ro-0"] * 4 + ["ro-1"] * 4
    assert json.loads(said[0]["langfuse.observation.usage_details"]) == {"input": 12, "output": 5}
    assert said[0]["langfuse.observation.model.name"] == "weather/agent-001"
    assert SECRET in said[0]["langfuse.observation.input"]
    assert said[1]["langfuse.observation.output"] == SECRET
    ((_, headers), *_) = langfuse.sent(TRACES)
    assert headers["x-langfuse-ingestion-version"] == "4"
    ((body, _),) = langfuse.sent(SCORES)
    roots = {span.trace_id.hex(): span.span_id.hex() for span in spans if not span.parent_span_id}
    scores = json.loads(body)
    assert [(one["name"], one["value"], one["dataType"]) for one in scores] == [
        ("reward", 0.0, "NUMERIC"),
        ("reward", 1.0, "NUMERIC"),
    ]
    assert {one["traceId"]: one["observationId"] for one in scores} == roots


def test_content_is_sent_only_when_asked_for(langfuse: Loopback, tmp_path: Path) -> None:
    tell({"name": "langfuse", "base_url": langfuse.url}, tmp_path)
    assert len(spans_of(langfuse)) == 8
    assert SECRET not in str(spans_of(langfuse)) + str(langfuse.sent(SCORES))


def test_a_programs_own_client_stays_its_own(langfuse: Loopback, tmp_path: Path) -> None:
    """The SDK keeps one client a key: the first one made decides for all."""
    from langfuse._client.resource_manager import LangfuseResourceManager

    tell({"name": "langfuse", "base_url": langfuse.url}, tmp_path)
    assert LangfuseResourceManager._instances == {}


def test_what_langfuse_rejects_is_an_error_and_no_key_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from report_kit import batch, run_info

    def reject(asked: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, str]:
        if asked.endswith(SCORES):
            return 207, json.dumps(REJECTED).encode(), "application/json"
        return 200, b"", "application/x-protobuf"

    with loopback(reject) as server:
        tracker = make({"name": "langfuse", "base_url": server.url})
        tracker.start(run_info(tmp_path))
        with pytest.raises(InfraError, match="rejected 1 of 2 scores"):
            tracker.rollouts(batch(content=False))
    monkeypatch.delenv("LANGFUSE_SECRET_KEY")
    with pytest.raises(ConfigError, match="Langfuse has no keys"):
        make("langfuse").start(run_info(tmp_path))
