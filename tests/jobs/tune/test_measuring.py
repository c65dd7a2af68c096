"""What a repeat of a cell has measured, and why a cell has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobs.tune.measuring import Wave
from store.records import Job
from tasks.context import AppContext
from tests.support.webapps import on_sqlite
from tests.support.written_jobs import Written

pytestmark = on_sqlite


@pytest.fixture
def written(context: AppContext, project: str) -> Written:
    return Written(context, project)


@pytest.fixture
def wave(written: Written) -> Callable[..., Wave]:
    """Makes the wave of a job with this status, of which the rows have ended that were written."""

    def make(status: str = "completed", repeat: int = 1, **columns: Any) -> Wave:
        job = Job(id=written.job.id, status=status, total=6, errors=None, attempt_error=None)
        for name, value in columns.items():
            setattr(job, name, value)
        return Wave.of(written.context, repeat, [job])

    return make


def test_the_figures_of_a_repeat_are_those_of_its_answered_rows(written: Written, wave: Callable[..., Wave]) -> None:
    for position, seconds in ((0, 1.0), (1, 3.0)):
        written.end((position, "completed"), input_tokens=10, output_tokens=5, seconds=seconds)
    written.end((2, "failed"), error={"code": "request_timeout", "message": "too long"}, output_tokens=99)
    written.end((3, "failed"), error={"code": "request_timeout", "message": "much too long"})
    measured = wave().measured()
    assert (measured.rows, measured.ok, measured.errors) == (4, 2, {"request_timeout": 2})
    assert (measured.input_tokens, measured.output_tokens, measured.p50) == (20, 10, 2.0)
    assert measured.seconds > 0 and measured.jobs == (written.job.id,)


def test_a_repeat_without_an_answer_has_no_latencies(written: Written, wave: Callable[..., Wave]) -> None:
    written.end((0, "failed"), error={"code": "request_timeout", "message": "too long"})
    assert (wave().measured().p50, wave().measured().p99) == (None, None)


def test_a_wave_with_an_answer_goes_on(written: Written, wave: Callable[..., Wave]) -> None:
    written.end((0, "completed"))
    written.end((1, "failed"), error={"code": "request_timeout", "message": "too long"})
    assert wave().failure("10m") is None


def test_a_cell_whose_time_is_over_says_how_far_it_came(written: Written, wave: Callable[..., Wave]) -> None:
    written.end((0, "completed"), (1, "completed"))
    says = "the time of the cell (10m) ended: 2 of 6 rows of repeat 2 had ended"
    assert wave("expired", repeat=2).failure("10m") == ("over_budget", says)


def test_a_job_that_failed_gives_its_own_reason(written: Written, wave: Callable[..., Wave]) -> None:
    written.end((0, "completed"))
    failed = wave("failed", errors=[{"message": "The model is gone."}])
    assert failed.failure("10m") == ("failed", "The model is gone.")
    assert wave("cancelled", repeat=0).failure("10m") == ("failed", "the warm-up was cancelled")


def test_of_a_wave_without_an_answer_the_commonest_reason_is_told_and_all_are_evidence(
    written: Written, wave: Callable[..., Wave]
) -> None:
    written.end((0, "failed"), (1, "failed"), error={"code": "engine_error", "message": "no memory"})
    written.end((2, "failed"), error={"code": "request_timeout", "message": "too long"})
    failed = wave(repeat=0, attempt_error="the engine does not start")
    assert failed.failure("10m") == ("failed", "no row of the warm-up was answered; engine_error: no memory")
    evidence = failed.evidence(written.context)
    assert evidence == ("engine_error: no memory", "request_timeout: too long", "the engine does not start")
