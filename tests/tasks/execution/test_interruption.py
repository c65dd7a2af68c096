"""A wait for the engine can be interrupted; nothing else is."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from tasks.execution.interruption import Interruption, Stopped


def interrupt(interruption: Interruption) -> None:
    """Interrupt from a thread, as the heartbeat does."""
    thread = threading.Thread(target=interruption.interrupt)
    thread.start()
    thread.join()
    time.sleep(0.01)  # here the signal arrives, at the latest


def test_a_wait_is_interrupted() -> None:
    with Interruption() as interruption:
        timer = threading.Timer(0.05, interruption.interrupt)
        timer.start()
        with pytest.raises(Stopped):
            interruption.call(lambda: time.sleep(60))
        timer.join()


def test_work_between_two_waits_is_never_interrupted() -> None:
    with Interruption() as interruption:
        interrupt(interruption)
        assert interruption.call(lambda: "answer") == "answer"
        interrupt(interruption)


def test_a_wait_that_raises_is_over() -> None:
    def fail() -> None:
        raise ValueError

    with Interruption() as interruption:
        with pytest.raises(ValueError):
            interruption.call(fail)
        interrupt(interruption)


def test_the_signals_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with Interruption():
        assert signal.getsignal(signal.SIGUSR2) != before
    assert signal.getsignal(signal.SIGUSR2) == before
