"""Spans that this process writes, kept in memory, and a collector that takes those of a stack."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from batchyard.telemetry import spans
from batchyard.telemetry.traceparents import TraceParent
from tests.support.receivers import Receiver, listening


class SeenSpan(NamedTuple):
    """A span as a collector sees it: ids in hex, times in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    error: bool
    start: int
    end: int
    service: str = ""


def hex_ids(place: TraceParent) -> tuple[str, str]:
    """Trace id and span id."""
    return f"{place.trace_id:032x}", f"{place.span_id:016x}"


class Recorder:
    """The spans that were written since it began."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from batchyard.telemetry.exporting import SpanExport

        self._memory = InMemorySpanExporter()
        self.export = SpanExport(SimpleSpanProcessor(self._memory))

    @property
    def spans(self) -> list[SeenSpan]:
        return [
            SeenSpan(
                span.name,
                f"{span.context.trace_id:032x}",
                f"{span.context.span_id:016x}",
                f"{span.parent.span_id:016x}" if span.parent else "",
                dict(span.attributes or {}),
                not span.status.is_ok,
                span.start_time or 0,
                span.end_time or 0,
            )
            for span in self._memory.get_finished_spans()
        ]

    def of(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == name]


def record_spans(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Have this process write its spans to memory until the test ends."""
    recorder = Recorder()
    monkeypatch.setattr(spans, "_sends", True)
    monkeypatch.setattr(spans, "_export", recorder.export)
    return recorder


class Collector:
    """A real OTLP receiver over HTTP."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}

    @property
    def spans(self) -> list[SeenSpan]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        seen = []
        for request in self._receiver.received:
            assert request.path == "/v1/traces"
            zipped = request.headers.get("Content-Encoding") == "gzip"
            message = ExportTraceServiceRequest.FromString(gzip.decompress(request.body) if zipped else request.body)
            for of_process in message.resource_spans:
                service = next(a.value.string_value for a in of_process.resource.attributes if a.key == "service.name")
                seen += [_seen(span, service) for scope in of_process.scope_spans for span in scope.spans]
        return seen

    def of(self, trace: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.trace == trace]


def _seen(span: Any, service: str) -> SeenSpan:
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    attributes = {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}
    times = (span.start_time_unix_nano, span.end_time_unix_nano)
    return SeenSpan(span.name, *ids, attributes, span.status.code == 2, *times, service)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Start a collector on a free port, until the block ends."""
    with listening(Receiver()) as receiver:
        yield Collector(receiver)
