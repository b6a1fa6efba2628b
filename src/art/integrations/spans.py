"""Sends spans to an OTLP endpoint, with a provider of its own: what the program does with OpenTelemetry is not touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from art.errors import InfraError
from art.integrations.genai import REWARD, SCHEMA_URL, SpanSeen, Value
from art.version import package_version

Relabel = Callable[[SpanSeen], Mapping[str, Value]]
"""Attributes of a span, where a receiver wants others beside the conventions'."""


class SpanSender:
    """One request for each batch, whose failure is seen: OpenTelemetry's own processors drop in silence."""

    def __init__(
        self,
        endpoint: str,
        *,
        resource: Mapping[str, str],
        timeout: float,
        headers: Mapping[str, str] | None = None,
        relabel: Relabel = lambda span: span.attributes,
    ) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        collected: list[Any] = []

        class Collect(SpanProcessor):
            """Keeps ended spans until their batch is whole."""

            def on_end(self, span: Any) -> None:
                collected.append(span)

        self._collected = collected
        self._endpoint = endpoint
        self._relabel = relabel
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint, timeout=timeout, headers=dict(headers or {}) or None
        )
        self._provider = TracerProvider(resource=Resource.create(dict(resource)), shutdown_on_exit=False)
        self._provider.add_span_processor(Collect())
        self._tracer = self._provider.get_tracer("art", package_version(), schema_url=SCHEMA_URL)

    def send(self, spans: Sequence[SpanSeen]) -> list[tuple[str, str]]:
        """Trace and span id (hexadecimal) of each; InfraError when the receiver did not take them."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        ids = [self._emit(span, None) for span in spans]
        whole, self._collected[:] = list(self._collected), []
        if whole and self._exporter.export(whole) is not SpanExportResult.SUCCESS:
            raise InfraError(f"{self._endpoint} did not take {len(whole)} spans")
        return ids

    def _emit(self, span: SpanSeen, context: Any) -> tuple[str, str]:
        from opentelemetry.trace import (
            SpanKind,
            Status,
            StatusCode,
            format_span_id,
            format_trace_id,
            set_span_in_context,
        )

        made = self._tracer.start_span(
            span.name,
            context=context,
            kind=SpanKind.CLIENT if span.kind == "client" else SpanKind.INTERNAL,
            attributes=dict(self._relabel(span)),
            start_time=nanoseconds(span.started),
        )
        for child in span.children:
            self._emit(child, set_span_in_context(made))
        if span.score is not None:
            result = {"gen_ai.evaluation.name": REWARD, "gen_ai.evaluation.score.value": span.score}
            made.add_event("gen_ai.evaluation.result", result, nanoseconds(span.ended))
        if span.failed:
            made.set_status(Status(StatusCode.ERROR))
        made.end(nanoseconds(max(span.started, span.ended)))
        known = made.get_span_context()
        return format_trace_id(known.trace_id), format_span_id(known.span_id)

    def close(self) -> None:
        """Nothing is queued."""
        self._provider.shutdown()


def nanoseconds(seconds: float) -> int:
    """Since 1970, as OpenTelemetry counts."""
    return int(seconds * 1e9)
