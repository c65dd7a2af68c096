"""A job that waits for others goes on when they have ended as it wants, or is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.submission import dependencies
from store.database import Database
from store.jobs import lifecycle
from store.records import Job
from tasks.context import AppContext
from tests.support.jobs import create_job
from tests.support.messages import SentMessages

pytestmark = pytest.mark.usefixtures("sent")


class Waiting:
    """Jobs of one project, one of which waits for the others."""

    def __init__(self, context: AppContext, project: str) -> None:
        self.context = context
        self.project = project

    def create(self, **changes: Any) -> str:
        with self.context.database.write() as session:
            return create_job(session, self.project, **changes).id

    def wait_for(self, *dependencies: tuple[str, str], **changes: Any) -> str:
        wanted = [{"id": owner, "when": when} for owner, when in dependencies]
        return self.create(depends_on=wanted, **changes)

    def end(self, job_id: str, status: str) -> None:
        """End a job, in the way in which one without items ends."""
        with self.context.database.write() as session:
            if status == "failed":
                lifecycle.reject(session, job_id, [])
            elif status == "cancelled":
                lifecycle.cancel(session, self.project, job_id)
                assert lifecycle.transition(session, job_id, "cancelling", "cancelled")
            else:
                assert lifecycle.transition(session, job_id, "validating", "finalizing", outcome=status)
                assert lifecycle.transition(session, job_id, "finalizing", status)

    def look(self, job_id: str) -> Job:
        dependencies.release_ready(self.context)
        with self.context.database.read() as session:
            return session.get_one(Job, job_id)


@pytest.fixture
def jobs(new_context: Callable[..., AppContext], project: str, recipes: Path) -> Waiting:
    return Waiting(new_context(recipes=str(recipes)), project)


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "cancelled"])
@pytest.mark.parametrize("when", ["afterok", "afternotok", "afterany"])
def test_an_end_is_what_the_job_waits_for_or_its_own_end(
    jobs: Waiting, sent: SentMessages, when: str, status: str
) -> None:
    first = jobs.create()
    job_id = jobs.wait_for((first, when))
    assert jobs.look(job_id).status == "waiting"
    jobs.end(first, status)
    goes_on = when == "afterany" or (when == "afterok") == (status == "completed")
    job = jobs.look(job_id)
    assert (job.status, sent.ids("validate_job")) == (("validating", [job_id]) if goes_on else ("cancelling", []))
    if not goes_on:
        assert job.outcome == "cancelled"
        (error,) = job.errors or []
        assert (error["code"], first in error["message"], status in error["message"]) == (
            "dependency_failed",
            True,
            True,
        )
    jobs.look(job_id)
    assert len(sent.ids("validate_job")) == int(goes_on)


def test_a_job_waits_for_all_and_one_that_fails_is_enough(jobs: Waiting, sent: SentMessages) -> None:
    first, second = jobs.create(), jobs.create()
    both = jobs.wait_for((first, "afterok"), (second, "afterok"))
    either = jobs.wait_for((first, "afterok"), (second, "afternotok"))
    jobs.end(first, "completed")
    assert (jobs.look(both).status, jobs.look(either).status) == ("waiting", "waiting")
    jobs.end(second, "completed")
    assert (jobs.look(both).status, jobs.look(either).status) == ("validating", "cancelling")


def test_a_job_gets_the_artifact_that_it_waited_for(jobs: Waiting, database: Database, sent: SentMessages) -> None:
    first, without = jobs.create(), jobs.create()
    wanted = [{"id": owner, "when": "afterok", "artifact": "out.jsonl"} for owner in (first, without)]
    job_id, hopeless = (jobs.create(depends_on=[entry], input_sha256="") for entry in wanted)
    before = jobs.look(job_id).config_sha256
    with database.write() as session:
        file = lifecycle.add_artifact(session, session.get_one(Job, first), "out.jsonl", "f" * 64, 9, None)
    jobs.end(first, "completed")
    jobs.end(without, "completed")
    job = jobs.look(job_id)
    assert (job.status, job.input_sha256, job.input_file_id) == ("validating", "f" * 64, file.id)
    assert job.input_name.endswith("out.jsonl")
    assert job.config_sha256 != before
    assert jobs.look(hopeless).status == "cancelling"
    assert sent.ids("validate_job") == [job_id]


def test_a_job_that_is_cancelled_while_it_waits_stays_so(jobs: Waiting, sent: SentMessages, project: str) -> None:
    first = jobs.create()
    job_id = jobs.wait_for((first, "afterok"))
    with jobs.context.database.write() as session:
        lifecycle.cancel(session, project, job_id)
    jobs.end(first, "completed")
    assert (jobs.look(job_id).status, sent.ids("validate_job")) == ("cancelling", [])


def test_what_was_deleted_long_after_its_end_has_ended_in_some_way(jobs: Waiting) -> None:
    any_end, good_end = (jobs.wait_for(("job_gone", when)) for when in ("afterany", "afterok"))
    assert jobs.look(any_end).status == "validating"
    assert jobs.look(good_end).status == "cancelling"
