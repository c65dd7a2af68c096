"""Engines that share a machine's memory: who has no work makes way for one that would not fit."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import pytest

from batchyard.models import ModelSpec
from inference import pipeline
from inference.doctor import memory
from inference.doctor.memory import Machine
from inference.residents import directory, memory_eviction
from inference.residents.session import EngineTimeouts
from tests.support.ray_nodes import stop_engines
from tests.support.rows import chat, table, until

GIB = 2**30


@pytest.fixture(autouse=True)
def no_engine_left(cluster: str) -> Iterator[None]:
    stop_engines()
    yield
    stop_engines()


def run(name: str, *bodies: dict[str, Any], **arguments: Any) -> Generator[int]:
    spec = ModelSpec(name=name, engine="echo", engine_args=arguments)
    timeouts = EngineTimeouts(request_timeout=60.0, start_timeout=240.0, idle_seconds=600.0)
    with closing(pipeline.run(spec, "/v1/chat/completions", table([*bodies]), timeouts)) as tables:
        yield from (answers.num_rows for answers in tables)


def models() -> set[str]:
    return {state.model for state in directory.states().values()}


def idle(*names: str) -> bool:
    """True if these models' engines have had no work for long enough."""
    states = directory.states().values()
    return {state.model for state in states if state.idle_seconds > directory.IDLE_SECONDS} >= set(names)


def test_the_longest_idle_engine_makes_way_until_the_next_fits_and_none_where_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("oldest", "older", "newest")
    for name in names:
        assert sum(run(name, *chat("hi"))) == 1
    until(lambda: idle(*names))
    memory_eviction.evict_idle(ModelSpec(name="next", engine="echo"))
    assert models() == {*names}
    ended: list[str] = []
    evict = directory.evict
    monkeypatch.setattr(directory, "evict", lambda name: ended.append(name) or evict(name))
    monkeypatch.setattr(memory, "this_machine", lambda: Machine(GIB if len(ended) == 2 else 0))
    memory_eviction.evict_idle(ModelSpec(name="next", engine="echo"))
    until(lambda: models() == {"newest"})


def test_an_engine_at_work_stays_however_little_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = run("busy", *chat("short", max_tokens=1), *chat("long", max_tokens=50_000), ms_per_token=1)
    monkeypatch.setattr(memory, "this_machine", lambda: Machine(0))
    assert sum(run("warm", *chat("hi"))) == 1
    until(lambda: idle("warm"))
    next(answers)
    memory_eviction.evict_idle(ModelSpec(name="next", engine="echo"))
    until(lambda: models() == {"busy"})
    answers.close()
