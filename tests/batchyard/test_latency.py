"""Latencies of models and classes add up, and percentiles are of all requests below them."""

from __future__ import annotations

from batchyard import latency
from batchyard.comparing import histogram


def test_latencies_of_several_add_up_by_model_and_class() -> None:
    total = latency.merged([{"a": {"short": {"3": 1}}}, {"a": {"short": {"3": 2}, "long": {"9": 1}}, "b": {"x": {}}}])
    assert total == {"a": {"short": {"3": 3}, "long": {"9": 1}}, "b": {"x": {}}}


def test_percentiles_are_of_all_requests_below() -> None:
    quick, slow = (histogram.of([seconds] * number) for seconds, number in ((0.1, 95), (10.0, 5)))
    summary = latency.summary({"a": {"short": quick, "long": slow}, "b": {"short": slow}})
    assert summary is not None
    a, b = (summary.models[model] for model in ("a", "b"))
    assert (summary.requests, a.requests, b.requests) == (105, 100, 5)
    assert a.p50 < 0.2 < 5 < a.p99
    assert b.p50 > 5
    assert b.model_dump(exclude={"classes"}) == b.classes["short"].model_dump()


def test_nothing_measured_has_no_percentiles() -> None:
    assert latency.summary(None) is None and latency.summary({}) is None
