"""Addresses of engines that answer live requests, and who starts them, on a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tasks.context import AppContext
from tasks.live import addresses, demand, starter
from tasks.live.addresses import EngineAddress


@pytest.fixture
def published(new_context: Callable[..., AppContext], broker: str) -> AppContext:
    context = new_context(redis_url=broker)
    context.redis.flushall()
    return context


def test_what_was_published_last_stands(published: AppContext) -> None:
    first, second = (EngineAddress(name, "http://127.0.0.1:1", "token", 4) for name in ("one", "two"))
    addresses.publish(published, "m", [first, second])
    addresses.publish(published, "m", [second])
    engines, failure = addresses.read(published, "m")
    assert ([engine.name for engine in engines], failure) == (["two"], None)
    assert engines[0].at > 0 and engines[0].token == "token"
    assert addresses.read(published, "other") == ([], None)


def test_a_failure_is_told_until_an_engine_runs(published: AppContext) -> None:
    addresses.fail(published, "m", "no GPU")
    assert addresses.read(published, "m") == ([], "no GPU")
    addresses.publish(published, "m", [EngineAddress("one", "u", "t", 1)])
    assert addresses.read(published, "m")[1] is None


def test_demand_is_heard_at_once_and_forgotten_after_a_while(
    published: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = demand.heard(published, 30)
    next(heard)
    demand.want(published, "m")
    next(heard)  # far sooner than 30 s, or the test ends by its time limit
    assert demand.wanted(published) == {"m"}
    monkeypatch.setattr(demand, "SECONDS", -1.0)
    assert demand.wanted(published) == set()


def test_a_starter_that_is_stopped_while_it_looks_at_engines_ends(
    published: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = starter.Starter(published)

    def stopped_meanwhile() -> bool:
        starts.stop()
        return True

    monkeypatch.setattr(starter, "is_connected", stopped_meanwhile)
    starts.run()
