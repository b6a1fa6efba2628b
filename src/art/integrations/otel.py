"""OpenTelemetry over OTLP/HTTP: metrics of every row, and a trace for each rollout (`genai` says which attributes)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from art.config.outside import host_of, is_loopback
from art.config.trackers import OtelOptions
from art.errors import InfraError
from art.integrations.genai import PROVIDER, SCHEMA_URL, span_of
from art.integrations.spans import SpanSender
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
    """Exports each row and each batch as it comes, not by a clock."""

    def __init__(self, options: OtelOptions) -> None:
        self._options = options
        self._run: RunInfo | None = None
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
        away = not is_loopback(place)
        return About(name="otel", place=place, leaves=away, rollouts=True, content=self._options.content)

    def start(self, run: RunInfo) -> None:
        """Make exporters and providers; nothing is sent yet."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.resources import Resource

        self._run = run
        timeout = self._options.timeout
        resource = {
            "service.name": self._options.service_name,
            "service.version": package_version(),
            "art.project": run.project,
            "art.run": run.name,
        }
        self._spans = SpanSender(f"{self.endpoint}/v1/traces", resource=resource, timeout=timeout)
        self._exporter = OTLPMetricExporter(endpoint=f"{self.endpoint}/v1/metrics", timeout=timeout)
        self._reader = InMemoryMetricReader()  # read when a row comes; and a failed export is seen
        self._metrics = MeterProvider(
            [self._reader], resource=Resource.create(dict(resource)), shutdown_on_exit=False
        )
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
        self._export_metrics()

    def rollouts(self, batch: RolloutBatch) -> None:
        """A trace for each rollout, and the conventions' two histograms. InfraError when the collector refuses."""
        assert self._run is not None, "rollouts follow a start"
        self._spans.send([span_of(rollout, batch, self._run) for rollout in batch.rollouts])
        for call in (call for rollout in batch.rollouts for call in rollout.calls):
            labels = {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": call.model,
            }
            self._durations.record(max(0.0, call.ended - call.started), labels)
            for kind, count in (("input", call.input_tokens), ("output", call.output_tokens)):
                if count is not None:
                    self._tokens.record(count, {**labels, "gen_ai.token.type": kind})
        self._export_metrics()

    def _export_metrics(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = self._reader.get_metrics_data()
        if data is not None and self._exporter.export(data) is not MetricExportResult.SUCCESS:
            raise InfraError(f"the collector at {self.endpoint} did not take the metrics")

    def artifact(self, checkpoint: PublishedStep) -> None:
        """Never called: `about.checkpoints` is False."""
        raise AssertionError("OpenTelemetry takes no checkpoints")

    def close(self, seconds: float) -> None:
        """Nothing is queued: every row and batch was exported as it came."""
        self._metrics.shutdown(timeout_millis=seconds * 1000)
        self._spans.close()
