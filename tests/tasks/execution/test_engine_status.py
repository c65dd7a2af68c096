"""The published engines are those that may still be there, each with what it does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from batchyard.endpoints.catalog import CHAT, EMBEDDINGS
from batchyard.models import ModelSpec
from inference.residents.status import ResidentStatus
from tasks.context import AppContext
from tasks.execution import engine_status
from tests.support.stacks import ROOT


def status(name: str, **fields: Any) -> ResidentStatus:
    return ResidentStatus(**{"name": name, "model": "echo", "state": "idle", "seen_at": time.time(), **fields})


def publish(context: AppContext, *engines: ResidentStatus) -> None:
    engine_status.publish(context, {engine.name: engine for engine in engines})


def test_engines_are_starting_busy_or_idle(connected: AppContext) -> None:
    publish(
        connected,
        status("c", answered=9, idle_seconds=3.0, preemptions=4),
        status("a", state="starting"),
        status("b", state="busy", answered=5, in_flight=2, endpoints=[{"url": "there"}]),
    )
    states = engine_status.read(connected)
    assert [(state.name, state.state, state.answered, state.in_flight) for state in states] == [
        ("a", "starting", 0, 0),
        ("b", "busy", 5, 2),
        ("c", "idle", 9, 0),
    ]
    assert [state.endpoints for state in states] == [[], [{"url": "there"}], []]
    assert [state.preemptions for state in states] == [None, None, 4]


@pytest.mark.usefixtures("frozen_time")
def test_an_engine_that_must_have_stopped_itself_is_not_shown(
    new_context: Callable[..., AppContext], broker: str
) -> None:
    context = new_context(redis_url=broker, engine_idle_seconds=10)
    publish(context, status("a", idle_seconds=1.0), status("b", idle_seconds=11.0))
    assert [state.name for state in engine_status.read(context)] == ["a"]


def test_what_is_published_replaces_what_was(connected: AppContext) -> None:
    publish(connected, status("a"))
    publish(connected)
    assert engine_status.read(connected) == []


def test_the_requests_in_flight_of_each_model_stand_in_redis_until_nobody_counts_them(connected: AppContext) -> None:
    idle = status("c", model="other")
    publish(connected, status("a", state="busy", in_flight=5), status("b", state="busy", in_flight=2), idle)
    assert connected.redis.hgetall("batchyard:concurrency") == {"echo": "7", "other": "0"}
    assert 0 < connected.redis.ttl("batchyard:concurrency") <= engine_status.CONCURRENCY_SECONDS
    publish(connected, idle)
    assert connected.redis.hgetall("batchyard:concurrency") == {"other": "0"}


def test_a_redis_that_is_away_stops_no_work(context: AppContext) -> None:
    publish(context, status("a"))
    with pytest.raises(redis.RedisError):
        engine_status.read(context)


@pytest.mark.usefixtures("frozen_time")
def test_a_start_is_known_until_the_engine_is_there(connected: AppContext) -> None:
    began = time.time()
    publish(connected, status("before", seen_at=began - 1))
    with engine_status.starting(connected, "echo") as is_whole:
        known = engine_status.known(connected)
        assert known is not None and known.cold("echo"), "what was seen before may be gone"
        assert known.starting["echo"] == pytest.approx(began, abs=1)
        with engine_status.starting(connected, "echo") as is_whole_too:  # another segment waits for it too
            assert (is_whole, is_whole_too) == (True, False)
            again = engine_status.known(connected)
            assert again is not None and again.starting == known.starting
    publish(connected, status("a"))
    known = engine_status.known(connected)
    assert known is not None and not known.cold("echo")


def test_without_redis_a_segment_waits_for_its_engine_all_the_same(context: AppContext) -> None:
    with engine_status.starting(context, "echo"):
        assert engine_status.known(context) is None


def test_an_engine_whose_process_is_gone_from_this_machine_is_not_shown(connected: AppContext) -> None:
    show = "import json; from inference.residents import process; print(json.dumps(process.identity())); input()"
    with subprocess.Popen(
        [sys.executable, "-c", show], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as running:
        assert running.stdout is not None
        identity = json.loads(running.stdout.readline())
        elsewhere = {**identity, "place": "another machine"}
        publish(connected, status("here", process=identity), status("there", process=elsewhere), status("old"))
        assert [state.name for state in engine_status.read(connected)] == ["here", "old", "there"]
        running.kill()
        running.wait()
    assert [state.name for state in engine_status.read(connected)] == ["old", "there"]


def test_what_an_engine_says_of_itself_is_published_as_it_is(connected: AppContext) -> None:
    said = {"started_at": 5.0, "start_seconds": 2.0, "memory_bytes": 7, "gpus": 0.5, "cache_use": 0.25}
    counted = {"prefix_tokens": 100, "prefix_hits": 40}
    publish(connected, status("a", **said, **counted))
    (state,) = engine_status.read(connected)
    assert {name: getattr(state, name) for name in said | counted} == said | counted


@pytest.mark.usefixtures("frozen_time")
def test_an_engine_that_stays_for_live_requests_is_shown_however_long_it_idles(
    new_context: Callable[..., AppContext], broker: str
) -> None:
    context = new_context(redis_url=broker, engine_idle_seconds=10)
    always = ModelSpec(name="echo", engine="echo", live="always")  # type: ignore[arg-type]
    context = replace(context, models={"echo": always})
    publish(context, status("a", idle_seconds=900.0), status("b", idle_seconds=900.0, seen_at=time.time() - 20))
    assert [state.name for state in engine_status.read(context)] == ["a"], "the other was not seen for long"


@pytest.mark.parametrize(
    ("engine", "path", "forms", "logprobs"),
    [
        ("vllm", CHAT.path, ["json", "regex", "choice", "grammar"], True),
        ("openai", CHAT.path, ["json"], False),
        ("transformers", CHAT.path, [], True),
        ("echo", CHAT.path, ["choice"], True),
        ("vllm", EMBEDDINGS.path, [], False),
    ],
)
def test_a_model_says_what_its_chats_can_be_held_to_and_whether_they_have_logprobs(
    engine: str, path: str, forms: list[str], logprobs: bool
) -> None:
    spec = ModelSpec(name="m", engine=engine, endpoints=(path,))
    assert (engine_status.answer_forms(spec), engine_status.tells_logprobs(spec)) == (forms, logprobs)
