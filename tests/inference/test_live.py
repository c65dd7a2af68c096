"""Where engines answer live requests, on a real Ray cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from batchyard.models import ModelSpec
from inference import live
from inference.live import LiveReplicas
from inference.ray.starts import start_replicas
from inference.residents import directory
from inference.residents.session import EngineTimeouts
from tests.support.ray_nodes import stop_engines
from tests.support.rows import until

SPEC = ModelSpec(name="late", engine="echo")
TIMEOUTS = EngineTimeouts(request_timeout=30.0, start_timeout=240.0, idle_seconds=600.0)


@pytest.fixture(autouse=True)
def no_engine_left(cluster: str) -> Iterator[None]:
    yield
    stop_engines()


def test_an_engine_that_is_late_to_say_that_it_runs_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    name = directory.actor_name(SPEC, TIMEOUTS.request_timeout, 0)
    monkeypatch.setattr(live, "READY_SECONDS", 0.2)

    def start_and_stall(*arguments: Any) -> Any:
        started = start_replicas(*arguments)
        pid = directory.states(60.0)[name].process["pid"]
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(live.READY_SECONDS + 1, os.kill, (pid, signal.SIGCONT)).start()
        return started

    monkeypatch.setattr(live, "start_replicas", start_and_stall)
    replicas = LiveReplicas(TIMEOUTS)
    assert [engine.name for engine in replicas.start(SPEC, threading.Event(), lambda _: None)] == [name]
    assert [engine.name for engine in replicas.running(SPEC, first_seconds=60.0)] == [name]


def test_an_engine_that_hangs_is_killed_and_one_that_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = LiveReplicas(TIMEOUTS)
    (engine,) = replicas.start(SPEC, threading.Event(), lambda _: None)
    assert replicas.end_if_hanging(SPEC, engine.name) is None
    process = psutil.Process(directory.states(60.0)[engine.name].process["pid"])
    process.suspend()
    with monkeypatch.context() as patch:
        patch.setattr(live, "HANGING_SECONDS", 1.0)
        death = replicas.end_if_hanging(SPEC, engine.name)
    assert death is not None and (death.model, death.requests, death.next) == ("late", 0, "starts_again")
    assert death.reason == "the engine's process did not answer for 1 seconds and was killed"
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    assert replicas.end_if_hanging(SPEC, engine.name) is None


def test_the_death_of_an_idle_engine_is_known_once_and_its_stop_is_none() -> None:
    name = directory.actor_name(SPEC, TIMEOUTS.request_timeout, 0)

    def start() -> None:
        LiveReplicas(TIMEOUTS).start(SPEC, threading.Event(), lambda _: None)

    start()
    assert live.deaths(SPEC.name) == []
    os.kill(directory.states(60.0)[name].process["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 270
    while not (found := live.deaths(SPEC.name)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (death,) = found
    assert (death.model, death.replica, death.requests, death.next) == ("late", 0, 0, "starts_again")
    assert death.reason
    assert live.deaths(SPEC.name) == []
    start()
    directory.stop_all(SPEC.name)
    while any(seen == name for seen, _ in directory.SEEN.values()):
        assert time.monotonic() < deadline
        assert live.deaths(SPEC.name) == []
        time.sleep(0.05)
