"""The state machine of engine openai's endpoints, on a clock of its own: limits, health and choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from inference.engines.openai import endpoints
from inference.engines.openai.endpoints import EndpointHealth, RemoteEndpoint, choose

ENDS: dict[str, Callable[[RemoteEndpoint, float], None]] = {
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
    all_ = [RemoteEndpoint(f"http://{index}/v1", each, now, discovered=True) for index, each in enumerate(limits)]
    for one in all_:
        one.probed(now)
    for index, event in steps:
        one = all_[index % len(all_)]
        if event == "take" and (endpoint := choose(all_, now, one)) is not None:
            assert endpoint.health(now) in (EndpointHealth.HEALTHY, EndpointHealth.DEGRADED) and not endpoint.gone
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
    flaky, steady = (RemoteEndpoint(f"http://{name}/v1", 100, 0.0) for name in ("flaky", "steady"))
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
    endpoint = RemoteEndpoint("http://a/v1", 100, 0.0)
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
    endpoint = RemoteEndpoint("http://a/v1", 100, 0.0, discovered=True)
    endpoint.probe_failed(300.0, "no connection", responded=False, fatal=False)
    assert (endpoint.health(300.0), endpoint.health(301.0)) == ("unhealthy", "stale")
    endpoint.probe_failed(400.0, "HTTP 500", responded=True, fatal=False)
    assert (endpoint.health(700.0), endpoint.health(701.0)) == ("unhealthy", "stale")
    endpoint.probed(800.0)
    assert endpoint.health(9999.0) == "healthy"


def test_an_endpoint_with_an_outage_begins_again_with_one_request() -> None:
    endpoint = RemoteEndpoint("http://a/v1", 100, 0.0)
    endpoint.probed(0.0)
    assert endpoint.limit == 16
    endpoint.failed(1.0, "bad", fatal=True)
    endpoint.probed(2.0)
    assert endpoint.limit == 1


def test_all_requests_of_one_overload_halve_the_limit_once() -> None:
    endpoint = RemoteEndpoint("http://a/v1", 100, 0.0)
    for _ in range(10):
        endpoint.overloaded(2.0, 1.0, "busy")
    assert endpoint.limit == 8
    endpoint.overloaded(3.0, 2.5, "busy")
    assert endpoint.limit == 4
    for now in range(4, 10):
        endpoint.overloaded(now, now, "busy")
    assert endpoint.limit == 1


def test_an_endpoint_that_was_slow_once_is_tried_again_when_it_has_nothing_to_do() -> None:
    slow, fast = (RemoteEndpoint(f"http://{name}/v1", 100, 0.0) for name in ("slow", "fast"))
    for endpoint, seconds in ((slow, 60.0), (fast, 1.0)):
        endpoint.probed(0.0)
        endpoint.in_flight = 1
        endpoint.answered(60.0, 60.0 - seconds, 1)
        endpoint.in_flight = 0
    fast.in_flight = 3
    assert choose([slow, fast], 60.0) is fast
    assert choose([slow, fast], 60.0 + 6 * endpoints.HALF_LIFE) is slow


# Prefixes


def fleet(number: int, max_in_flight: int = 1000) -> list[RemoteEndpoint]:
    """Usable endpoints, all of one speed."""
    all_ = [RemoteEndpoint(f"http://node{index}:8000/v1", max_in_flight, 0.0) for index in range(number)]
    for one in all_:
        one.probed(0.0)
        one.limit = max_in_flight
    return all_


def key(prefix: object) -> bytes:
    return str(prefix).encode()


def take(all_: list[RemoteEndpoint], prefix: object, avoid: RemoteEndpoint | None = None) -> RemoteEndpoint:
    endpoint = choose(all_, 0.0, avoid, key(prefix))
    assert endpoint is not None
    endpoint.in_flight += 1
    return endpoint


def homes(all_: list[RemoteEndpoint], prefixes: int = 400) -> list[str]:
    """The URL of each prefix's endpoint while nothing else is in flight."""
    chosen = [choose(all_, 0.0, None, key(prefix)) for prefix in range(prefixes)]
    return [endpoint.url for endpoint in chosen if endpoint is not None]


def test_requests_that_begin_alike_go_to_one_endpoint_while_it_has_room() -> None:
    all_ = fleet(8)
    for prefix in range(20):
        (home,) = {take(all_, prefix).url for _ in range(endpoints.FIRST)}
        assert home == homes(all_[::-1], prefix + 1)[prefix], "whatever the order of the endpoints"
        for one in all_:
            one.in_flight = 0


def test_prefixes_are_spread_over_all_endpoints() -> None:
    counts = Counter(homes(fleet(8), 4000))
    assert len(counts) == 8 and min(counts.values()) > 400 and max(counts.values()) < 600


def test_what_is_too_much_for_a_prefixs_endpoint_goes_to_its_next_one() -> None:
    all_ = fleet(4)
    first = take(all_, "hot")
    for one in all_:
        one.in_flight = 20
    first.in_flight = 26  # the mean, with one more, is 21.75
    assert take(all_, "hot") is first
    first.in_flight = 28
    second = take(all_, "hot")
    assert second is not first and second is take([one for one in all_ if one is not first], "hot")


def test_a_faster_endpoint_keeps_more_of_its_prefixes() -> None:
    all_ = fleet(2)
    first = take(all_, "hot")
    (other,) = (one for one in all_ if one is not first)
    first.speed, other.speed = 30.0, 10.0
    first.in_flight, other.in_flight = 90, 19
    assert choose(all_, 0.0, None, key("hot")) is first, "three quarters of the speed may have 94 % of the load"
    first.speed, other.speed = 10.0, 30.0
    assert choose(all_, 0.0, None, key("hot")) is other


def test_an_endpoint_that_is_lost_moves_its_own_prefixes_only_and_one_that_comes_back_gets_them_again() -> None:
    all_ = fleet(8)
    before = homes(all_)
    all_[3].failed(0.0, "fatal", fatal=True)
    after = homes(all_)
    lost = [at for at, url in enumerate(before) if url == all_[3].url]
    assert lost and all(before[at] == after[at] for at in range(len(before)) if at not in lost)
    assert len({after[at] for at in lost}) > 4, "they are spread over those that are left"
    all_[3].probed(0.0)
    assert homes(all_) == before


def test_a_new_endpoint_takes_its_share_of_the_prefixes_and_moves_no_other() -> None:
    all_ = fleet(8)
    before, after = homes(all_[:7]), homes(all_)
    moved = {new for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {all_[7].url}


def test_a_request_that_failed_goes_elsewhere_although_its_prefix_is_there() -> None:
    all_ = fleet(3)
    first = take(all_, "p")
    assert take(all_, "p", avoid=first) is not first
    assert take([first], "p", avoid=first) is first


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=300),
)
def test_no_endpoint_has_more_than_the_bound_and_one_prefix_gives_all_of_them_work(
    number: int, steps: list[tuple[int, bool]]
) -> None:
    all_ = fleet(number)
    for prefix, ends in steps:
        busy = [one for one in all_ if one.in_flight]
        if ends and busy:
            busy[prefix % len(busy)].in_flight -= 1
            continue
        endpoint = take(all_, prefix)
        mean = max(sum(one.in_flight for one in all_), endpoints.FIRST * number) / number
        assert endpoint.in_flight < endpoints.LOAD_BOUND * mean + 1
    for one in all_:
        one.in_flight = 0
    for _ in range(64 * number):
        take(all_, "one")
    assert min(one.in_flight for one in all_) >= 64 * 0.75 - 1


def test_one_endpoint_gets_everything() -> None:
    (only,) = fleet(1, 40)
    assert all(take([only], prefix % 3) is only for prefix in range(40))
    assert choose([only], 0.0, None, key(0)) is None
