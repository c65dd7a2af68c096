"""The state machine of engine openai's endpoints, on a clock of its own: limits, health and choice."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from hypothesis import given
from hypothesis import strategies as st

from batchyard import retry_after
from inference.engines.openai import endpoints
from inference.engines.openai.endpoints import Endpoint, Health, choose
from inference.engines.openai.slots import SlotQueue

ENDS: dict[str, Callable[[Endpoint, float], None]] = {
    "good": lambda one, now: one.answered(now, now - 1, 1),
    "bad": lambda one, now: one.failed(now, "bad"),
    "fatal": lambda one, now: one.failed(now, "fatal", fatal=True),
    "busy": lambda one, now: one.overloaded(now, now, "busy"),
    "refused": lambda one, now: one.responded(now),
}
"""The ends of a request."""
events = st.sampled_from(["take", *ENDS, "pause", "probe", "silent", "gone", "later"])


@given(
    st.lists(st.sampled_from([1, 2, 5, 40]), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), events), min_size=9),
)
def test_no_endpoint_gets_more_than_its_limit_and_none_that_is_not_usable_gets_any(
    limits: list[int], steps: list[tuple[int, str]]
) -> None:
    now = 0.0
    all_ = [Endpoint(f"http://{index}/v1", each, now, discovered=True) for index, each in enumerate(limits)]
    for one in all_:
        one.probed(now)
    for index, event in steps:
        one = all_[index % len(all_)]
        if event == "take" and (endpoint := choose(all_, now, one)) is not None:
            assert endpoint.health(now) in (Health.HEALTHY, Health.DEGRADED) and not endpoint.gone
            endpoint.in_flight += 1
            assert endpoint.in_flight <= endpoint.limit
            assert endpoint is not one or not any(other.has_capacity(now) for other in all_ if other is not one)
        elif event in ENDS and one.in_flight:
            ENDS[event](one, now)
            one.in_flight -= 1
        elif event == "pause":
            one.pause(now, 5)
            assert not one.has_capacity(now + 4.9)
        elif event == "probe":
            one.probed(now)
        elif event == "silent":
            one.probe_failed(now, "silent", responded=False, fatal=False)
        elif event == "gone":
            one.gone = not one.gone
        elif event == "later":
            now += 2
        assert all(1 <= each.limit <= each.max_in_flight for each in all_)


def test_an_endpoint_whose_requests_fail_now_and_then_is_degraded_and_asked_less() -> None:
    flaky, steady = (Endpoint(f"http://{name}/v1", 100, 0.0) for name in ("flaky", "steady"))
    for endpoint in (flaky, steady):
        endpoint.probed(0.0)
        endpoint.in_flight = 1
        endpoint.answered(1.0, 0.0, 1)
    flaky.failed(1.0, "bad")
    flaky.responded(1.0)
    flaky.failed(1.0, "bad")
    assert (flaky.health(1.0), steady.health(1.0)) == ("degraded", "healthy")
    for _ in range(15):
        endpoint = choose([flaky, steady], 1.0)
        assert endpoint is not None
        endpoint.in_flight += 1
    assert 1 <= flaky.in_flight < steady.in_flight / 3


def test_an_endpoint_is_unhealthy_after_three_failures_in_a_row_or_one_that_will_come_again() -> None:
    endpoint = Endpoint("http://a/v1", 100, 0.0)
    assert endpoint.health(0.0) == "unhealthy", "nobody has probed it yet"
    endpoint.probed(0.0)
    endpoint.failed(1.0, "bad")
    endpoint.failed(2.0, "bad")
    assert endpoint.health(2.0) == "degraded" and endpoint.usable
    endpoint.failed(3.0, "bad", responded=False)
    assert endpoint.health(3.0) == "unhealthy" and not endpoint.usable
    assert endpoint.health(1e9) == "unhealthy", "only a discovered endpoint can be stale"
    endpoint.probed(4.0)
    endpoint.failed(5.0, "misconfigured", fatal=True)
    assert endpoint.health(5.0) == "unhealthy"


def test_an_endpoint_of_a_file_is_stale_when_it_has_answered_nothing_for_five_minutes() -> None:
    endpoint = Endpoint("http://a/v1", 100, 0.0, discovered=True)
    endpoint.probe_failed(300.0, "no connection", responded=False, fatal=False)
    assert (endpoint.health(300.0), endpoint.health(301.0)) == ("unhealthy", "stale")
    endpoint.probe_failed(400.0, "HTTP 500", responded=True, fatal=False)
    assert (endpoint.health(700.0), endpoint.health(701.0)) == ("unhealthy", "stale")
    endpoint.probed(800.0)
    assert endpoint.health(9999.0) == "healthy"


def test_an_endpoint_with_an_outage_begins_again_with_one_request() -> None:
    endpoint = Endpoint("http://a/v1", 100, 0.0)
    endpoint.probed(0.0)
    assert endpoint.limit == 16
    endpoint.failed(1.0, "bad", fatal=True)
    endpoint.probed(2.0)
    assert endpoint.limit == 1


def test_all_requests_of_one_overload_halve_the_limit_once() -> None:
    endpoint = Endpoint("http://a/v1", 100, 0.0)
    for _ in range(10):
        endpoint.overloaded(2.0, 1.0, "busy")
    assert endpoint.limit == 8
    endpoint.overloaded(3.0, 2.5, "busy")
    assert endpoint.limit == 4
    for now in range(4, 10):
        endpoint.overloaded(now, now, "busy")
    assert endpoint.limit == 1


def test_an_endpoint_that_was_slow_once_is_tried_again_when_it_has_nothing_to_do() -> None:
    slow, fast = (Endpoint(f"http://{name}/v1", 100, 0.0) for name in ("slow", "fast"))
    for endpoint, seconds in ((slow, 60.0), (fast, 1.0)):
        endpoint.probed(0.0)
        endpoint.in_flight = 1
        endpoint.answered(60.0, 60.0 - seconds, 1)
        endpoint.in_flight = 0
    fast.in_flight = 3
    assert choose([slow, fast], 60.0) is fast
    assert choose([slow, fast], 60.0 + 6 * endpoints.HALF_LIFE) is slow


def test_retry_after_is_a_number_of_seconds_or_a_date() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    date = format_datetime(now + timedelta(seconds=90), usegmt=True)
    headers = ["7", date, format_datetime(now - timedelta(hours=1), usegmt=True), "soon", "nan", None]
    assert [retry_after.seconds(header, now.timestamp()) for header in headers] == [7, 90, 0, None, None, None]


def test_who_comes_again_goes_first_and_who_goes_away_leaves_the_place_to_the_next() -> None:
    async def scene() -> None:
        endpoint = Endpoint("http://a/v1", 1, 0.0)
        endpoint.probed(0.0)
        turns, order = SlotQueue({0: endpoint}), []

        async def come(name: str, last: Endpoint | None) -> None:
            assert await turns.acquire(lambda: math.inf, last) is endpoint
            order.append(name)
            turns.release(endpoint)

        assert await turns.acquire(lambda: math.inf) is endpoint
        tasks = [asyncio.create_task(come(*each)) for each in (("first", None), ("second", None), ("again", endpoint))]
        await asyncio.sleep(0)
        gone = asyncio.create_task(turns.acquire(lambda: math.inf, endpoint))
        await asyncio.sleep(0)
        turns.release(endpoint)
        gone.cancel()  # it owns the slot, and has not resumed yet
        await asyncio.wait([gone, *tasks], timeout=5)
        assert gone.cancelled() and order == ["again", "first", "second"] and endpoint.in_flight == 0

    asyncio.run(scene())
