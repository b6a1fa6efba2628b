"""OpenTelemetry: what a collector receives, decoded from its protobuf."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from report_kit import BEGAN, SECRET, Loopback, loopback, tell

from art.errors import InfraError
from art.integrations.registry import make


@pytest.fixture
def collector() -> Iterator[Loopback]:
    with loopback(lambda asked, body, headers: (200, b"", "application/x-protobuf")) as server:
        yield server


def decoded(kind: type[Any], sent: list[tuple[bytes, dict[str, str]]]) -> list[Any]:
    found = []
    for body, headers in sent:
        raw = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        found.append(kind.FromString(raw))
    return found


def spans_of(collector: Loopback) -> list[Any]:
    return [
        span
        for request in decoded(ExportTraceServiceRequest, collector.sent("/v1/traces"))
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def attributes(items: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(item) for item in value.array_value.values]
        return getattr(value, kind)

    return {item.key: plain(item.value) for item in items}


def points_of(collector: Loopback) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for request in decoded(ExportMetricsServiceRequest, collector.sent("/v1/metrics")):
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                assert scope.schema_url == "https://opentelemetry.io/schemas/1.41.0"
                for metric in scope.metrics:
                    data = metric.gauge if metric.WhichOneof("data") == "gauge" else metric.histogram
                    found.setdefault(metric.name, []).extend(data.data_points)
    return found


def test_rows_are_gauges_with_their_step(collector: Loopback, tmp_path: Path) -> None:
    tell({"name": "otel", "endpoint": collector.url}, tmp_path)
    points = points_of(collector)
    assert [point.as_double for point in points["art.train.reward"]][:2] == [0.25, 0.75]
    assert points["art.val.reward"][0].as_double == 0.5
    assert attributes(points["art.val.reward"][0].attributes) == {"art.split": "val"}
    assert [point.as_double for point in points["art.step"]][:2] == [1.0, 2.0]


def test_a_rollout_is_a_trace_after_the_conventions(collector: Loopback, tmp_path: Path) -> None:
    tell({"name": "otel", "endpoint": collector.url}, tmp_path)
    spans = spans_of(collector)
    roots = [span for span in spans if not span.parent_span_id]
    assert [span.name for span in roots] == ["invoke_agent agent-001"] * 2
    assert len({span.trace_id for span in spans}) == 2
    first = [span for span in spans if span.trace_id == roots[0].trace_id and span.parent_span_id]
    assert {span.parent_span_id for span in first} == {roots[0].span_id}
    assert [span.name for span in first] == [
        "chat weather/agent-001",
        "execute_tool get_weather",
        "chat weather/agent-001",
    ]
    assert [span.kind for span in first] == [3, 1, 3]  # client, internal
    assert first[1].start_time_unix_nano == int((BEGAN + 1) * 1e9)
    assert first[1].end_time_unix_nano == int((BEGAN + 2) * 1e9)
    root, call, tool = (attributes(span.attributes) for span in (roots[1], first[0], first[1]))
    assert root["gen_ai.operation.name"] == "invoke_agent"
    assert (root["gen_ai.conversation.id"], root["art.reward"], root["art.step"]) == ("ro-1", 1.0, 1)
    assert (root["art.metric.turns"], root["art.status"], root["art.scenario_id"]) == (2.0, "trained", "oslo")
    assert (call["gen_ai.usage.input_tokens"], call["gen_ai.usage.output_tokens"]) == (12, 5)
    assert call["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert call["gen_ai.response.model"] == "weather/agent-001@1"
    assert (tool["gen_ai.tool.name"], tool["gen_ai.tool.call.id"]) == ("get_weather", "t1")
    (event,) = roots[1].events
    assert event.name == "gen_ai.evaluation.result"
    assert attributes(event.attributes) == {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": 1.0,
    }
    usage = points_of(collector)["gen_ai.client.token.usage"]
    assert {attributes(point.attributes)["gen_ai.token.type"]: point.sum for point in usage} == {
        "input": 64.0,
        "output": 24.0,
    }


def test_content_is_sent_only_when_asked_for(collector: Loopback, tmp_path: Path) -> None:
    tell({"name": "otel", "endpoint": collector.url}, tmp_path)
    assert SECRET not in str(spans_of(collector))
    before = len(spans_of(collector))
    tell({"name": "otel", "endpoint": collector.url, "content": True}, tmp_path)
    spans = spans_of(collector)[before:]
    call, tool = (
        next(attributes(span.attributes) for span in spans if span.name.startswith(kind))
        for kind in ("chat", "execute_tool")
    )
    (asked,) = json.loads(call["gen_ai.input.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": f"weather in Oslo? {SECRET}"}]}
    (answer,) = json.loads(call["gen_ai.output.messages"])
    assert answer["finish_reason"] == "tool_calls"
    assert answer["parts"][0]["arguments"] == {"city": "Oslo", "note": SECRET}
    assert tool["gen_ai.tool.call.result"] == SECRET


def test_what_the_collector_refuses_is_an_error(tmp_path: Path) -> None:
    from report_kit import ROWS, batch, run_info

    with loopback(lambda asked, body, headers: (400, b"no", "text/plain")) as server:
        tracker = make({"name": "otel", "endpoint": server.url})
        tracker.start(run_info(tmp_path))
        with pytest.raises(InfraError, match="did not take 8 spans"):
            tracker.rollouts(batch(content=False))
        with pytest.raises(InfraError, match="did not take the metrics"):
            tracker.log(ROWS[0])


def test_a_collector_that_is_down_costs_what_it_would_have_got_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from report_kit import DEADLINE, ROWS, free_port, run_info

    from art.integrations.reporter import Reporter

    tracker = make({"name": "otel", "endpoint": f"http://127.0.0.1:{free_port()}", "timeout": 0.2})
    reporter = Reporter(run_info(tmp_path))
    reporter.add(tracker)
    for row in ROWS:
        reporter.row(row)
    reporter.close(seconds=DEADLINE)
    assert reporter.lost == len(ROWS)
    assert "3 rows did not reach it" in capsys.readouterr().err
