"""The jobs in a process's memory: which are current, and which are dropped first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jobs.running import memory
from jobs.running.memory import LiveJobs


def job(id_: str, *, epoch: int = 1, at: float = 0.0, size: int = 0) -> Any:
    return SimpleNamespace(job=SimpleNamespace(id=id_), epoch=epoch, at=at, items=SimpleNamespace(bytes=size))


def lease(epoch: int) -> Any:
    return SimpleNamespace(epoch=epoch)


def test_a_job_that_another_process_has_advanced_since_is_not_here() -> None:
    jobs = LiveJobs()
    jobs.keep(current := job("job_1", epoch=4))
    assert jobs.get("job_1", lease(5)) is current
    assert jobs.get("job_1", lease(6)) is None
    assert jobs.get("job_2", lease(5)) is None


def test_the_jobs_that_were_advanced_longest_ago_make_room_but_not_for_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "LIVE_BYTES", 100)
    jobs = LiveJobs()
    for number in range(4):
        jobs.keep(job(f"job_{number}", at=number, size=40))
    jobs.evict_others("job_0")
    assert [number for number in range(4) if jobs.get(f"job_{number}", lease(2))] == [0, 3]


def test_a_dropped_job_is_built_again() -> None:
    jobs = LiveJobs()
    jobs.keep(job("job_1"))
    jobs.drop("job_1")
    jobs.drop("job_1")
    assert jobs.get("job_1", lease(2)) is None
