"""A call that is stopped, or whose process ends, harms no other call and says what happened."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipes.processes import KillablePool, reason
from tests.support.rows import until

pytestmark = pytest.mark.long
WAIT_SECONDS = 360.0


class TwoArguments(Exception):
    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")


class Unpicklable:
    def __reduce__(self) -> str:
        raise TypeError("it holds a connection")


def killed_at_first(marker: Path) -> None:
    """End this process as Linux does when memory is short."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def refused_at_first(marker: Path) -> None:
    if not marker.exists():
        marker.touch()
        raise ValueError("the folder has an error")


def raise_two_arguments() -> None:
    raise TwoArguments("line 3", "no such column")


@pytest.fixture(scope="module")
def pool() -> Iterator[KillablePool]:
    pool = KillablePool(1, 600.0)
    yield pool
    pool.close()


def test_a_process_killed_while_it_starts_harms_no_call(tmp_path: Path) -> None:
    pool = KillablePool(1, 600.0, functools.partial(killed_at_first, tmp_path / "killed"))
    assert pool.submit(abs, -3).result(WAIT_SECONDS) == 3
    pool.close()


def test_what_loading_raises_is_said_and_the_next_call_loads_again(tmp_path: Path) -> None:
    pool = KillablePool(1, 600.0, functools.partial(refused_at_first, tmp_path / "refused"))
    with pytest.raises(ValueError, match="the folder has an error"):
        pool.submit(abs, -3).result(WAIT_SECONDS)
    assert pool.submit(abs, -3).result(WAIT_SECONDS) == 3
    pool.close()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ((os._exit, 3), "its process ended with exit code 3"),
        ((time.sleep, 600), "ran longer than 0.5 seconds"),
        ((raise_two_arguments,), "RuntimeError: TwoArguments: line 3: no such column"),
        ((functools.partial, "no function"), "TypeError: the first argument must be callable"),
        ((abs, Unpicklable()), "TypeError: it holds a connection"),
    ],
)
def test_how_a_call_ended_is_said_and_the_next_one_is_made(
    pool: KillablePool, monkeypatch: pytest.MonkeyPatch, call: tuple[object, ...], words: str
) -> None:
    assert pool.submit(abs, -3).result(WAIT_SECONDS) == 3
    with monkeypatch.context() as patched:
        patched.setattr(pool, "_seconds", 0.5 if call[0] is time.sleep else 600.0)
        future = pool.submit(*call)  # type: ignore[arg-type]
    error = future.exception(WAIT_SECONDS)
    assert isinstance(error, Exception) and reason(error) == words
    assert pool.submit(abs, -3).result(WAIT_SECONDS) == 3


def test_the_end_of_an_idle_process_harms_no_call(pool: KillablePool) -> None:
    pid = pool.submit(os.getpid).result(WAIT_SECONDS)
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid not in {child.pid for child in multiprocessing.active_children()})
    assert pool.submit(abs, -3).result(WAIT_SECONDS) == 3


def test_a_pool_that_closes_cancels_its_calls_and_ends_its_processes() -> None:
    pool = KillablePool(1, 600.0)
    pid = pool.submit(os.getpid).result(WAIT_SECONDS)
    running, waiting = pool.submit(time.sleep, 600), pool.submit(time.sleep, 600)
    pool.close()
    assert running.cancelled() and waiting.cancelled() and pool.submit(abs, -3).cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
