"""Replies to items: one of each kind for a turn, read in the order in which they were given."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import update

from batchyard.errors import ConflictError, NotFoundError
from store import leases, projects
from store.database import Database
from store.jobs import lifecycle, replies
from store.records import Job
from tests.support.jobs import start_job


def test_a_turn_has_one_reply_of_each_kind_in_each_life(database: Database, project: str) -> None:
    with database.write() as session:
        job, other = (start_job(session, project) for _ in range(2))
        for place in ((0, 1, 2), (0, 2, 2), (1, 1, 2)):
            replies.add(session, job.id, place, "verdict", {"passed": True}, "key_1")
        replies.add(session, job.id, (0, 1, 2), "requeue", {"passed": True}, "key_1")
        replies.add(session, other.id, (0, 1, 2), "verdict", {"passed": False}, None)
    with (
        database.write() as session,
        pytest.raises(ConflictError, match="Turn 2 of life 1 of the item has its verdict"),
    ):
        replies.add(session, job.id, (0, 1, 2), "verdict", {"passed": False}, "key_1")
    with database.read() as session:
        every = replies.after(session, job.id, 0)
        assert [(reply.position, reply.life, reply.kind) for reply in every] == [
            (0, 1, "verdict"),
            (0, 2, "verdict"),
            (1, 1, "verdict"),
            (0, 1, "requeue"),
        ]
        assert list(replies.after(session, job.id, every[2].id)) == [every[3]]
        assert list(replies.of_item(session, job.id, 0)) == [every[0], every[1], every[3]]
        assert {reply.body["passed"] for reply in every} == {True}


def test_a_job_is_locked_for_its_own_project_only(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        other = projects.get_or_create(session, "other").id
    with database.write() as session:
        assert lifecycle.locked(session, project, job.id).id == job.id
        with pytest.raises(NotFoundError):
            lifecycle.locked(session, other, job.id)


def test_a_job_that_rests_is_hastened_and_the_lease_of_one_that_works_is_left_alone(
    database: Database, project: str
) -> None:
    with database.write() as session:
        resting, working = (start_job(session, project) for _ in range(2))
        session.execute(update(Job).values(lease_expires_at=time.time() + 60))
        session.execute(update(Job).where(Job.id == working.id).values(lease_expires_at=0.0))
        assert leases.acquire_job(session, working.id, "here/1/task", 60) is not None
        for job in (resting, working):
            lifecycle.hasten(session, job.id)
    with database.write() as session:
        assert lifecycle.claim_advanceable(session, 5.0) == [resting.id]


def test_an_ended_job_is_finished_again_for_what_was_resolved_since_but_not_without_end(
    database: Database, project: str
) -> None:
    with database.write() as session:
        job = start_job(session, project)
        session.execute(update(Job).values(status="completed", stuck=2, completed=1, lease_expires_at=0.0))
        assert not lifecycle.any_ends(session)
        job = lifecycle.locked(session, project, job.id)
        lifecycle.resolved(session, job, "stuck")
    with database.write() as session:
        job = session.get_one(Job, job.id)
        assert (job.stuck, job.completed, job.amendments, job.unwritten) == (1, 2, 1, 1)
        assert lifecycle.any_ends(session)
        assert lifecycle.claim_finishable(session, 5.0) == [job.id]
        session.execute(update(Job).values(attempts=leases.ATTEMPTS, lease_expires_at=0.0))
        assert not lifecycle.any_ends(session)
        assert lifecycle.claim_finishable(session, 5.0) == []
