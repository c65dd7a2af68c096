"""Waits for Ray end when their results are there, when their time is over, and when nobody wants them."""

from __future__ import annotations

import time
from threading import Event, Timer
from typing import Any

import pytest
import ray

from batchyard.errors import Stopped
from inference import waits


@pytest.fixture(autouse=True)
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all references the text `ready` is ready at once, and no other ever."""

    def wait(references: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        ready = [each for each in references if each == "ready"][:num_returns]
        if len(ready) < num_returns:
            time.sleep(timeout)
        return ready, [each for each in references if each not in ready]

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(waits, "SLICE_SECONDS", 0.01)


def wait(*references: str, stopped: Event | None = None, timeout: float = 0.05, num_returns: int = 1) -> Any:
    return waits.wait(references, stopped or Event(), timeout=timeout, num_returns=num_returns)  # type: ignore[arg-type]


def test_what_is_ready_is_returned_at_once() -> None:
    assert wait("late", "ready", timeout=60) == (["ready"], ["late"])


def test_after_its_time_a_wait_returns_what_there_is() -> None:
    began = time.monotonic()
    assert wait("late", "ready", num_returns=2) == (["ready"], ["late"])
    assert 0.03 < time.monotonic() - began < 60


def test_a_wait_that_nobody_wants_any_more_ends_within_a_slice() -> None:
    stopped = Event()
    Timer(0.02, stopped.set).start()
    with pytest.raises(Stopped):
        wait("late", stopped=stopped, timeout=60)
