"""OpenTelemetry over OTLP/HTTP: metrics of every row, and a trace for each rollout (`genai` says which attributes)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from art.config.outside import host_of, is_loopback
from art.config.trackers import OtelOptions
from art.errors import InfraError
from art.integrations.genai import PROVIDER, REWARD, SCHEMA_URL, SpanSeen, span_of
from art.integrations.tracker import About, PublishedStep, Row, RunInfo
from art.version import package_version

if TYPE_CHECKING:
    from art.integrations.seen import RolloutBatch

DEFAULT_ENDPOINT = "http://127.0.0.1:4318"
TOKEN_BUCKETS = tuple(float(4**power) for power in range(14))
"""Bounds that the conventions give for `gen_ai.client.token.usage`."""
SECOND_BUCKETS = tuple(0.01 * 2**power for power in range(14))
"""Bounds that the conventions give for `gen_ai.client.operation.duration`."""


class OtelTracker:
    """Has providers of its own: what the program itself does with OpenTelemetry is not touched."""

    def __init__(self, options: OtelOptions) -> None:
        self._options = options
        self._run: RunInfo | None = None
        self._collected: list[Any] = []
        self._gauges: dict[str, Any] = {}

    @property
    def endpoint(self) -> str:
        """Base address of the collector."""
        given = self._options.endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        return (given or DEFAULT_ENDPOINT).rstrip("/")

    @property
    def about(self) -> About:
        """The collector."""
        place = host_of(self.endpoint)
        return About(
            name="otel",
            place=place,
            leaves=not is_loopback(place),
            rollouts=True,
            content=self._options.content,
        )

    def start(self, run: RunInfo) -> None:
        """Make exporters and providers; nothing is sent yet."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        self._run = run
        collected = self._collected

        class Collect(SpanProcessor):
            """Keeps ended spans until their batch is whole: one request for it, whose failure is seen."""

            def on_end(self, span: Any) -> None:
                collected.append(span)

        resource = Resource.create(
            {
                "service.name": self._options.service_name,
                "service.version": package_version(),
                "art.project": run.project,
                "art.run": run.name,
            }
        )
        timeout = self._options.timeout
        self._exporter = OTLPSpanExporter(endpoint=f"{self.endpoint}/v1/traces", timeout=timeout)
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._traces.add_span_processor(Collect())
        self._tracer = self._traces.get_tracer("art", package_version(), schema_url=SCHEMA_URL)
        self._metric_exporter = OTLPMetricExporter(endpoint=f"{self.endpoint}/v1/metrics", timeout=timeout)
        self._reader = (
            InMemoryMetricReader()
        )  # read when a row comes, not by a clock; and a failed export is seen
        self._metrics = MeterProvider([self._reader], resource=resource, shutdown_on_exit=False)
        self._meter = self._metrics.get_meter("art", package_version(), schema_url=SCHEMA_URL)
        self._tokens = self._meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used",
            explicit_bucket_boundaries_advisory=TOKEN_BUCKETS,
        )
        self._durations = self._meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration",
            explicit_bucket_boundaries_advisory=SECOND_BUCKETS,
        )

    def log(self, row: Row) -> None:
        """A gauge `art.<name>` for each figure, and the step as `art.step`. InfraError when the collector refuses."""
        attributes = {"art.split": row.split}
        for name, value in {**row.metrics, "step": float(row.step)}.items():
            gauge = self._gauges.get(name)
            if gauge is None:
                gauge = self._gauges[name] = self._meter.create_gauge(f"art.{name.replace('/', '.')}")
            gauge.set(value, attributes)
        self._flush()

    def rollouts(self, batch: RolloutBatch) -> None:
        """A trace for each rollout, and the conventions' two histograms. InfraError when the collector refuses."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        assert self._run is not None, "rollouts follow a start"
        for rollout in batch.rollouts:
            self._emit(span_of(rollout, batch, self._run), None)
            for call in rollout.calls:
                labels = {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.provider.name": PROVIDER,
                    "gen_ai.request.model": call.model,
                }
                self._durations.record(max(0.0, call.ended - call.started), labels)
                for kind, count in (("input", call.input_tokens), ("output", call.output_tokens)):
                    if count is not None:
                        self._tokens.record(count, {**labels, "gen_ai.token.type": kind})
        spans, self._collected[:] = list(self._collected), []
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise InfraError(f"the collector at {self.endpoint} did not take {len(spans)} spans")
        self._flush()

    def _flush(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = self._reader.get_metrics_data()
        if data is not None and self._metric_exporter.export(data) is not MetricExportResult.SUCCESS:
            raise InfraError(f"the collector at {self.endpoint} did not take the metrics")

    def _emit(self, span: SpanSeen, context: Any) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        kind = SpanKind.CLIENT if span.kind == "client" else SpanKind.INTERNAL
        started = self._tracer.start_span(
            span.name,
            context=context,
            kind=kind,
            attributes=span.attributes,
            start_time=_nanoseconds(span.started),
        )
        for child in span.children:
            self._emit(child, set_span_in_context(started))
        if span.score is not None:
            result = {"gen_ai.evaluation.name": REWARD, "gen_ai.evaluation.score.value": span.score}
            started.add_event("gen_ai.evaluation.result", result, _nanoseconds(span.ended))
        if span.failed:
            started.set_status(Status(StatusCode.ERROR))
        started.end(_nanoseconds(max(span.started, span.ended)))

    def artifact(self, checkpoint: PublishedStep) -> None:
        """Never called: `about.checkpoints` is False."""
        raise AssertionError("OpenTelemetry takes no checkpoints")

    def close(self, seconds: float) -> None:
        """Nothing is queued: every row and batch was exported as it came."""
        self._metrics.shutdown(timeout_millis=seconds * 1000)
        self._traces.shutdown()


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
