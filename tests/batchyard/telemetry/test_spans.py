"""Spans are written when their block ends; without OTEL_* variables they cost nothing and import nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from batchyard.telemetry import spans, traceparents
from batchyard.telemetry.spans import EndedSpan
from tests.support.traces import hex_ids, record_spans

ROOT = traceparents.of_work("batch_1", None)


def test_a_span_has_the_time_the_attributes_and_the_failure_of_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_spans(monkeypatch)
    before = time.time_ns()
    with pytest.raises(ValueError, match="secret"), spans.span("merge", ROOT, seconds_ago=1.0) as span:
        inside = time.time_ns()
        assert spans.current() == span.place
        span.set({"batchyard.lines": 7, "nothing": None})
        raise ValueError("a secret prompt")
    assert spans.current() is None
    [written] = recorder.spans
    assert (written.name, written.trace, written.parent) == ("merge", *hex_ids(ROOT))
    assert written.attributes == {"batchyard.lines": 7, "error.type": "ValueError"}, "no message: it may quote"
    assert written.error and before <= written.start + 1_000_000_000 <= inside <= written.end


def test_a_span_without_a_parent_begins_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_spans(monkeypatch)
    for _ in range(2):
        with spans.span("chat echo", None):
            pass
    first, second = recorder.spans
    assert first.parent == second.parent == "" and first.trace != second.trace


@pytest.mark.long
def test_nothing_of_opentelemetry_is_imported_unless_it_is_wanted() -> None:
    """redis-py imports the SDK wherever it is installed, so here an import of it fails."""
    code = """
import sys, time, timeit
sys.modules["opentelemetry"] = None
import tasks.app, webapp.gateway.traces
from batchyard.telemetry import spans, traceparents
spans.prepare()
place = traceparents.of_work("batch_1", None)
def one():
    with spans.span("x", place) as span:
        span.set({})
seconds = timeit.timeit(one, timer=time.process_time, number=10_000)
print([name for name in sys.modules if name.startswith("opentelemetry.")], seconds < 1)
"""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "True"]


def test_a_collector_that_hangs_holds_up_no_work_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()

    class Stuck:
        def send(self, span: EndedSpan) -> None:
            pass

        def flush(self) -> None:
            hanging.wait(60)

    record_spans(monkeypatch)
    monkeypatch.setattr(spans, "_export", Stuck())
    monkeypatch.setattr(spans, "FLUSH_SECONDS", 0.1)
    began = time.monotonic()
    spans.flush()
    hanging.set()
    assert time.monotonic() - began < 30


def test_a_share_of_requests_is_picked() -> None:
    assert spans.picked(100, 0.0) == []
    assert spans.picked(3, 1.0) == [0, 1, 2]
    assert 50 < len(spans.picked(1000, 0.1)) < 200
