"""Exporting: the only module that imports OpenTelemetry. Spans are sent by OTLP over HTTP, from a thread of its own."""

import os
import threading

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from batchyard import __version__
from batchyard.telemetry.spans import EndedSpan
from batchyard.telemetry.traceparents import TraceParent

SCHEDULE = "OTEL_BSP_SCHEDULE_DELAY"
SCHEDULE_MILLISECONDS = 1000.0
"""A killed process loses the spans of so long, unless the environment says another time: the SDK's is 5 s."""


class SpanExport:
    """Sends spans that have ended. Its queue is bounded: while a collector is away, spans are dropped."""

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({"service.version": __version__} | ({} if named else {"service.name": "batchyard"}))
        self._places = _Places()
        self._provider = TracerProvider(resource=resource, id_generator=self._places, shutdown_on_exit=False)
        delay = float(os.environ.get(SCHEDULE) or SCHEDULE_MILLISECONDS)
        processor = processor or BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=delay)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("batchyard", __version__)

    def send(self, span: EndedSpan) -> None:
        """Put a span into the queue, unless its trace is not sampled."""
        self._places.next = span.place
        started = self._tracer.start_span(
            span.name,
            context=self._context(span.parent),
            kind=SpanKind[span.kind.upper()],
            attributes=span.attributes,
            start_time=span.start,
        )
        if span.error is not None:
            started.set_status(Status(StatusCode.ERROR))
            started.set_attribute("error.type", span.error)
        started.end(span.end)

    def _context(self, parent: TraceParent | None) -> Context:
        if parent is None:
            return Context()
        sampled = parent.sampled
        if sampled is None:  # as the sampler decides of the span that begins the trace
            decision = self._provider.sampler.should_sample(None, parent.trace_id, "").decision
            sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        above = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(NonRecordingSpan(above), Context())

    def flush(self) -> None:
        """Send the queue now. It may take as long as the collector does."""
        self._provider.force_flush()


class _Places(RandomIdGenerator, threading.local):
    """Gives the span that this thread starts next the ids of its place."""

    next: TraceParent

    def generate_trace_id(self) -> int:
        return self.next.trace_id

    def generate_span_id(self) -> int:
        return self.next.span_id
