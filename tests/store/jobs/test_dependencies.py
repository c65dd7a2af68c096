"""A waiting job begins or is cancelled once, whoever sees first what it waits for."""

from __future__ import annotations

import pytest

from store.database import Database
from store.jobs import dependencies, lifecycle
from store.records import Job
from tests.support.jobs import create_job
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


@pytest.fixture
def jobs(database: Database, project: str) -> tuple[Job, Job]:
    """A job, and one that waits for it."""
    with database.write() as session:
        first = create_job(session, project)
        return first, create_job(session, project, depends_on=[first.id])


def test_statuses_are_those_of_jobs_and_batches_of_the_project(
    database: Database, project: str, jobs: tuple[Job, Job]
) -> None:
    first, second = jobs
    with database.read() as session:
        assert [job.id for job in dependencies.waiting(session)] == [second.id]
        assert dependencies.statuses(session, project, [first.id, second.id, "batch_none"]) == {
            first.id: "validating",
            second.id: "waiting",
        }
        assert dependencies.statuses(session, "proj_other", [first.id]) == {}


def test_a_released_job_is_validated_once(database: Database, project: str, jobs: tuple[Job, Job]) -> None:
    for released in (True, False):
        with database.write() as session:
            assert dependencies.release(session, jobs[1]) is released
    with database.read() as session:
        assert lifecycle.get(session, project, jobs[1].id).status == "validating"
        assert dependencies.waiting(session) == []


def test_a_job_whose_dependency_failed_is_cancelled_with_the_reason(
    database: Database, project: str, jobs: tuple[Job, Job]
) -> None:
    for failed in (True, False):
        with database.write() as session:
            assert dependencies.fail(session, jobs[1], "It has failed.") is failed
    with database.read() as session:
        job = lifecycle.get(session, project, jobs[1].id)
    assert (job.status, job.outcome) == ("cancelling", "cancelled")
    assert [(error["code"], error["message"]) for error in job.errors or []] == [
        ("dependency_failed", "It has failed.")
    ]
