"""Traffic of live requests: what the gateways have counted, as rates, quantiles and shares of the last minutes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from inference.residents.status import ResidentStatus
from tasks.context import AppContext
from tasks.execution import engine_status, tally
from tasks.live import traffic
from tasks.live.traffic import Counts
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


def engine(name: str = "e", **fields: Any) -> ResidentStatus:
    return ResidentStatus(**{"name": name, "model": "echo", "state": "busy", "seen_at": time.time(), **fields})


def counts(number: int = 1, **values: Any) -> Counts:
    counted = Counts()
    request: dict[str, Any] = {
        "failed": False,
        "output_tokens": 10,
        "milliseconds": 50,
        "seconds": {"first": [0.04], "queue": [0.001], "gap": [0.01, 0.03]},
    }
    for _ in range(number):
        counted.add("default", **request | values)
    return counted


def test_rates_quantiles_and_what_the_engines_say_stand_together(connected: AppContext) -> None:
    traffic.count(connected, "echo", counts(99))
    seconds = {"first": [2.0], "queue": [1.5], "gap": []}
    traffic.count(connected, "echo", counts(failed=True, output_tokens=0, seconds=seconds))
    engines = [
        engine("a", live_in_flight=3, live_waiting=1, batch_limit=5, redone_requests=2, redone_output_tokens=7),
        engine("b", live_in_flight=1, batch_limit=6, redone_input_tokens=4),
        engine("c", model="other", live_in_flight=9),
    ]
    (live,) = traffic.recent(connected, engines)
    assert (live.model, live.in_flight, live.waiting, live.batch_limit) == ("echo", 4, 1, 11)
    assert (live.redone_requests, live.redone_tokens) == (2, 11)
    (tier,) = live.tiers.values()
    elapsed = 100 / tier.requests_per_second
    assert 60 <= elapsed <= 120
    assert tier.failed_per_second == pytest.approx(1 / elapsed)
    assert tier.output_tokens_per_second == pytest.approx(990 / elapsed)
    assert live.time_share == pytest.approx(100 * 0.05 / elapsed / 2), "two replicas have twice the time"
    assert tier.ttft_seconds is not None and tier.itl_seconds is not None and tier.queue_seconds is not None
    assert tier.ttft_seconds.p50 == pytest.approx(0.04, rel=0.02)
    assert tier.queue_seconds.p99 == pytest.approx(0.001, rel=0.02)
    assert (tier.itl_seconds.p50, tier.itl_seconds.p99) == pytest.approx((0.01, 0.03), rel=0.02)


def test_tiers_are_counted_apart(connected: AppContext) -> None:
    counted = counts()
    counted.add("flex", failed=False, output_tokens=1, milliseconds=1, seconds={"first": [9.0]})
    traffic.count(connected, "echo", counted)
    (live,) = traffic.recent(connected, [])
    assert live.batch_limit is None and set(live.tiers) == {"default", "flex"}
    first = {name: tier.ttft_seconds.p50 for name, tier in live.tiers.items() if tier.ttft_seconds}
    assert first == pytest.approx({"default": 0.04, "flex": 9.0}, rel=0.02)


def test_a_model_whose_engine_answered_live_requests_once_says_what_was_redone(connected: AppContext) -> None:
    (live,) = traffic.recent(connected, [engine(live_answered=4, redone_requests=3), engine("x", model="batches-only")])
    assert (live.model, live.redone_requests, live.tiers, live.time_share) == ("echo", 3, {}, 0.0)


def test_the_last_hour_shows_live_tokens_beside_the_batches(
    connected: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_000_030.0
    for minutes_ago, tokens in ((70, 999), (3, 60), (1, 120)):
        monkeypatch.setattr(time, "time", lambda ago=minutes_ago: now - 60 * ago)
        tally.count(connected, "echo", {"output_tokens": tokens, "completed": 1, "seconds:decode:3": 1})
        traffic.count(connected, "echo", counts(output_tokens=2 * tokens))
    monkeypatch.setattr(time, "time", lambda: now)
    history = traffic.history(connected)["echo"]
    assert [minute for minute in history if minute.live or minute.batch] == [(2, 2.0, 1.0), (0, 4.0, 2.0)]
    assert [minute.minutes_ago for minute in history] == list(range(tally.HOUR - 1, -1, -1))


def test_a_redis_that_is_away_says_no_share_and_stops_no_gateway(context: AppContext) -> None:
    traffic.count(context, "echo", counts())
    assert traffic.time_shares(context) == {}


def test_the_shares_of_models_without_live_traffic_are_left_out(connected: AppContext) -> None:
    traffic.count(connected, "echo", counts(milliseconds=30_000))
    engine_status.publish(connected, {"a": engine("a"), "b": engine("b", model="other", live_answered=1)})
    shares = traffic.time_shares(connected)
    assert set(shares) == {"echo"} and 0.25 <= shares["echo"] <= 0.5
