"""Spans go to the collector that the environment names, unless their trace is not sampled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from batchyard.telemetry import spans, traceparents
from batchyard.telemetry.exporting import SpanExport
from batchyard.telemetry.spans import EndedSpan
from tests.support.traces import Collector, Recorder, collecting

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        yield collector


def a_trace(export: Any, work_id: str, client: str | None = None) -> None:
    root = traceparents.of_work(work_id, client)
    export.send(EndedSpan("merge", spans.child(root), root, 2, 3, {}))
    export.send(EndedSpan("batch", root, traceparents.stored(client), 1, 4, {"batchyard.total": 5}, "failed"))


def test_a_collector_gets_spans_with_their_ids_times_and_service(collector: Collector) -> None:
    export = SpanExport()
    a_trace(export, "batch_1", CLIENT + "1")
    export.flush()
    merge, batch = collector.spans
    assert (batch.trace, batch.parent) == tuple(CLIENT.split("-")[1:3])
    assert (merge.trace, merge.parent, merge.start, merge.end) == (batch.trace, batch.id, 2, 3)
    assert batch.attributes == {"batchyard.total": 5, "error.type": "failed"} and batch.error
    assert batch.service == "batchyard"


def test_a_trace_is_sampled_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    recorder = Recorder()
    for number in range(40):
        a_trace(recorder.export, f"batch_{number}")
    traces = [span.trace for span in recorder.of("batch")]
    assert 5 < len(traces) < 35
    assert traces == [span.trace for span in recorder.of("merge")]


def test_a_client_that_does_not_sample_its_trace_gets_none() -> None:
    recorder = Recorder()
    a_trace(recorder.export, "batch_1", CLIENT + "0")
    assert recorder.spans == []


def test_a_collector_that_is_away_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "512")
    # Nothing listens there, and nothing will, while the exporter tries again.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    export = SpanExport()
    began = time.monotonic()
    for number in range(1000):
        a_trace(export, f"batch_{number}")
    assert time.monotonic() - began < 20
