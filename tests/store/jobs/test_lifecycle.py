"""Jobs move along one table by compare-and-set, say how they end once, and always end."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from batchyard.backoff import Backoff
from batchyard.errors import ConflictError, LeaseLost, NotFoundError, RequestError
from batchyard.statuses import JOB_TRANSITIONS, TERMINAL
from store import events, leases, segments
from store.database import Database
from store.jobs import lifecycle, stages
from store.keys import Principal
from store.leases import acquire_job
from store.records import Batch, Job, Segment
from tests.support.jobs import create_job, open_stage, planned, start_job


def reload(database: Database, job: Job) -> Job:
    with database.read() as session:
        return session.get_one(Job, job.id)


def event_types(database: Database, job: Job) -> list[str]:
    with database.read() as session:
        recorded, _ = events.page(session, job, after=None, limit=100)
    return [event.type for event in recorded]


def later(database: Database, job: Job, **values: Any) -> None:
    """Let the job's lease run out, and set these values."""
    with database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(lease_expires_at=0.0, **values))


@given(st.lists(st.sampled_from(sorted(JOB_TRANSITIONS)), max_size=12))
def test_no_path_leaves_a_terminal_status(path: list[str]) -> None:
    current = "waiting"
    for following in path:
        if following in JOB_TRANSITIONS[current]:
            assert current not in TERMINAL
            current = following


def test_every_status_can_be_cancelled_or_is_an_end() -> None:
    assert {status for status, following in JOB_TRANSITIONS.items() if "cancelling" not in following} == TERMINAL | {
        "cancelling"
    }


def test_a_job_starts_by_validating_its_input_unless_it_waits_for_others(database: Database, project: str) -> None:
    with database.write() as session:
        job = create_job(session, project, completion_window="1h", due_after=60)
        dependent = create_job(session, project, depends_on=[{"id": job.id, "when": "afterok"}])
    assert (job.status, dependent.status) == ("validating", "waiting")
    assert (job.expires_at, job.due_at) == (job.created_at + 3600, job.created_at + 60)
    assert dependent.due_at == dependent.expires_at == dependent.created_at + 86400


def test_a_job_that_ends_says_so_once(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        assert lifecycle.transition(session, job.id, "in_progress", "finalizing", outcome="completed")
        assert not lifecycle.transition(session, job.id, "in_progress", "finalizing", outcome="expired")
        assert lifecycle.transition(session, job.id, "finalizing", "completed")
        assert not lifecycle.transition(session, job.id, "finalizing", "completed")
    ended = reload(database, job)
    assert (ended.status, ended.outcome, ended.total) == ("completed", "completed", 3)
    assert ended.in_progress_at and ended.finalizing_at and ended.completed_at
    assert event_types(database, job) == ["job.completed"]


def test_a_transition_that_the_table_does_not_have_is_a_fault(database: Database, project: str) -> None:
    with pytest.raises(ValueError, match="never goes from completed"), database.write() as session:
        lifecycle.transition(session, create_job(session, project).id, "completed", "in_progress")


def test_a_job_with_a_bad_input_fails_with_its_errors(database: Database, project: str) -> None:
    errors = [{"code": "missing_prompt", "line": 3, "message": "The row has no prompt.", "param": None}]
    with database.write() as session:
        job, cancelled = create_job(session, project), create_job(session, project)
        lifecycle.cancel(session, project, cancelled.id)
        for rejected in (job, cancelled):
            lifecycle.reject(session, rejected.id, errors)
    assert [(reload(database, ended).status, reload(database, ended).errors) for ended in (job, cancelled)] == [
        ("failed", errors),
        ("cancelled", errors),
    ]


@pytest.mark.parametrize("status", ["waiting", "validating", "in_progress", "finalizing"])
def test_whatever_a_job_does_it_can_be_cancelled_twice(database: Database, project: str, status: str) -> None:
    with database.write() as session:
        job = create_job(session, project)
        session.execute(update(Job).values(status=status))
        for _ in range(2):
            assert lifecycle.cancel(session, project, job.id).status == "cancelling"
        assert lifecycle.transition(session, job.id, "cancelling", "cancelled")
        assert lifecycle.cancel(session, project, job.id).status == "cancelled"
    assert reload(database, job).outcome == "cancelled"


def test_cancelling_the_ended_is_a_conflict_and_cancelling_the_complete_keeps_the_outcome(
    database: Database, project: str
) -> None:
    with database.write() as session:
        job, complete = start_job(session, project), start_job(session, project)
        for each in (job, complete):
            lifecycle.transition(session, each.id, "in_progress", "finalizing", outcome="completed")
        lifecycle.transition(session, job.id, "finalizing", "completed")
        assert lifecycle.cancel(session, project, complete.id).outcome == "completed"
    with (
        pytest.raises(ConflictError, match=r"^Cannot cancel a job with status 'completed'\.$"),
        database.write() as session,
    ):
        lifecycle.cancel(session, project, job.id)


def test_another_projects_job_is_not_there(database: Database, project: str) -> None:
    with database.write() as session:
        job = create_job(session, project)
    with database.read() as session:
        for call in (lifecycle.get, lifecycle.cancel):
            with pytest.raises(NotFoundError, match=f"^No job found with id '{job.id}'.$"):
                call(session, "proj_other", job.id)
        assert lifecycle.page(session, "proj_other", after=None, limit=20) == ([], False)


def test_a_list_is_newest_first_and_can_be_narrowed(database: Database, project: str) -> None:
    with database.write() as session:
        parent = create_job(session, project, recipe="experiment")
        children = [
            create_job(session, project, recipe="rollout", parent_id=parent.id, child_key=f"small/{number}")
            for number in range(3)
        ]
        start_job(session, project, recipe="panel")
    newest_first = [child.id for child in reversed(children)]
    with database.read() as session:

        def ids(**options: Any) -> list[str]:
            jobs, _ = lifecycle.page(session, project, **({"after": None, "limit": 20} | options))
            return [job.id for job in jobs]

        assert len(ids()) == 5
        assert ids(recipe="rollout") == ids(parent_id=parent.id) == newest_first
        assert ids(recipe="rollout", status="in_progress") == []
        assert ids(recipe="rollout", limit=2, after=newest_first[0]) == newest_first[1:]
        assert lifecycle.page(session, project, after=None, limit=3)[1]
        with pytest.raises(RequestError, match="no object with id 'job_nope'"):
            ids(after="job_nope")


def test_the_same_key_is_the_same_job_and_another_body_a_conflict(database: Database, project: str) -> None:
    with database.write() as session:
        job = create_job(session, project, idempotency=("key", "1" * 64))
    with database.read() as session:
        repeated = lifecycle.repeated(session, project, ("key", "1" * 64))
        assert repeated is not None and repeated.id == job.id
        assert lifecycle.repeated(session, project, ("other", "1" * 64)) is None
        assert lifecycle.repeated(session, "proj_other", ("key", "1" * 64)) is None
        with pytest.raises(ConflictError, match="used with another body"):
            lifecycle.repeated(session, project, ("key", "2" * 64))


def test_a_window_that_ends_before_the_items_are_known_finalizes_the_job(database: Database, project: str) -> None:
    with database.write() as session:
        jobs = [
            create_job(session, project),
            create_job(session, project, depends_on=[{"id": "job_other", "when": "afterany"}]),
        ]
        assert lifecycle.expire(session) == []
        session.execute(update(Job).values(expires_at=int(time.time()) - 1))
        assert lifecycle.expire(session) == []
    for job in jobs:
        assert (reload(database, job).status, reload(database, job).outcome) == ("finalizing", "expired")
    with database.write() as session:
        assert not lifecycle.validated(session, jobs[0].id, items_sha256="e" * 64, total=1)


def test_a_window_that_ends_while_items_live_is_told_of_once(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        session.execute(update(Job).values(expires_at=int(time.time()) - 1))
        assert lifecycle.expire(session) == [job.id]
        assert lifecycle.expire(session) == []
    assert (reload(database, job).status, reload(database, job).outcome) == ("in_progress", "expired")


def test_an_sla_state_is_told_of_once_however_often_it_comes_back(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
    changes = []
    for state in ("at_risk", "on_track", "at_risk", "late", "on_track"):
        with database.write() as session:
            changes.append(lifecycle.set_sla(session, session.get_one(Job, job.id), state, deadline=7))  # type: ignore[arg-type]
    assert changes == [True, True, False, True, False]
    assert event_types(database, job) == ["job.at_risk", "job.on_track", "job.late"]


def test_a_job_has_one_holder_and_a_former_one_cannot_write(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        first = acquire_job(session, job.id, "here/1/advance", 60)
        assert first is not None and first.epoch == 1
        assert acquire_job(session, job.id, "there/2/advance", 60) is None
        assert leases.holders(session) == {"here/1/advance"}
        leases.end_leases(session, {"here/1/advance"})
        second = acquire_job(session, job.id, "there/2/advance", 60)
        assert second is not None and second.epoch == 2
        second.guard(session)
    with pytest.raises(LeaseLost, match="jobs job_"), database.write() as session:
        first.guard(session)


def test_what_nobody_does_is_claimed_by_one_caller_after_a_pause(database: Database, project: str) -> None:
    with database.write() as session:
        new, running = create_job(session, project), start_job(session, project)
        assert lifecycle.claim_validatable(session, 60) == lifecycle.claim_advanceable(session, 60) == []
    for job in (new, running):
        later(database, job)
    with database.write() as session:
        assert lifecycle.claim_validatable(session, 60) == [new.id]
        assert lifecycle.claim_validatable(session, 60) == []
        assert lifecycle.claim_advanceable(session, 60) == [running.id]
        assert lifecycle.claim_advanceable(session, 60) == []


def test_a_job_that_is_advanced_is_not_claimed(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        assert acquire_job(session, job.id, "here/1/advance", 60) is not None
        assert lifecycle.claim_advanceable(session, 60) == []
    later(database, job)
    with database.write() as session:
        assert lifecycle.claim_advanceable(session, 60) == [job.id]
    lost = reload(database, job)
    assert (lost.holder, lost.attempts, lost.attempt_error) == (None, 1, "the worker that did it was lost")


def test_a_job_is_finished_when_its_batches_have_ended(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        batch = open_stage(session, job)
        lifecycle.transition(session, job.id, "in_progress", "finalizing", outcome="completed")
    later(database, job)
    with database.write() as session:
        assert lifecycle.claim_finishable(session, 60) == []
        session.execute(update(Batch).where(Batch.id == batch.id).values(status="completed"))
        assert lifecycle.claim_finishable(session, 60) == [job.id]
        assert lifecycle.claim_finishable(session, 60) == []


def test_a_cancelled_job_is_advanced_until_its_items_have_ended_and_then_finished(
    database: Database, project: str
) -> None:
    with database.write() as session:
        job, without_items = start_job(session, project, total=3), create_job(session, project)
        for each in (job, without_items):
            lifecycle.cancel(session, project, each.id)
    later(database, job, completed=1, stuck=1)
    later(database, without_items)
    with database.write() as session:
        assert lifecycle.claim_finishable(session, 60) == [without_items.id]
        assert lifecycle.claim_advanceable(session, 60) == [job.id]
    later(database, job, cancelled_items=1)
    with database.write() as session:
        assert lifecycle.claim_advanceable(session, 60) == []
        assert lifecycle.claim_finishable(session, 60) == [job.id]


def fail(database: Database, job: Job, times: int, *, counted: bool = True) -> None:
    """Let the work on a job fail; the times before this one are only written down."""
    with database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(attempts=Job.attempts + (times - 1) * counted))
        lease = acquire_job(session, job.id, "here/1/advance", 60)
        assert lease is not None
        leases.record_failure(session, lease, "it broke", counted=counted, backoff=Backoff(first=2.0))


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("validating", "failed", "validation_failed"),
        ("finalizing", "failed", "finishing_failed"),
        ("cancelling", "cancelled", "finishing_failed"),
    ],
)
def test_work_that_fails_without_end_ends_the_job_with_its_reason(
    database: Database, project: str, before: str, after: str, code: str
) -> None:
    with database.write() as session:
        job = create_job(session, project)
        session.execute(update(Job).values(status=before))
    fail(database, job, leases.ATTEMPTS - 1)
    with database.write() as session:
        assert lifecycle.give_up(session) == []
    fail(database, job, 1)
    with database.write() as session:
        assert lifecycle.give_up(session) == [job.id]
        assert lifecycle.give_up(session) == []
    ended = reload(database, job)
    assert (ended.status, [error["code"] for error in ended.errors or []]) == (after, [code])
    assert "in 10 attempts: it broke" in (ended.errors or [])[0]["message"]
    assert event_types(database, job) == [f"job.{after}"]


def test_a_job_that_cannot_be_advanced_is_finished_as_failed_with_what_it_has(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        batch = open_stage(session, job)
        stages.extend(session, batch.id, [planned()])
    fail(database, job, leases.ATTEMPTS)
    with database.write() as session:
        assert lifecycle.give_up(session) == [job.id]
    ending = reload(database, job)
    assert (ending.status, ending.outcome, ending.attempts, ending.attempt_error) == ("finalizing", "failed", 0, None)
    assert [error["code"] for error in ending.errors or []] == ["advance_failed"]
    with database.read() as session:
        assert session.get_one(Batch, batch.id).status == "cancelling"
    fail(database, job, leases.ATTEMPTS - 1)
    with database.write() as session:
        assert lifecycle.give_up(session) == []


def test_what_is_away_is_waited_for_until_a_day_after_the_window(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
    fail(database, job, leases.ATTEMPTS + 5, counted=False)
    with database.write() as session:
        assert lifecycle.give_up(session) == []
        session.execute(update(Job).values(expires_at=int(time.time()) - 86400 - 1))
        assert lifecycle.give_up(session) == [job.id]
    assert reload(database, job).status == "finalizing"


def test_a_cancelled_jobs_segments_stop(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        batch = open_stage(session, job)
        stages.extend(session, batch.id, [planned(), planned(row_group=1)])
        assert len(segments.waiting(session, 10)) == 2
        stages.cancel_batches(session, job.id)
        stages.cancel_batches(session, job.id)
        assert segments.waiting(session, 10) == []
        assert {segment.state for segment in session.query(Segment)} == {"pending"}
        cancelled = session.get_one(Batch, batch.id, populate_existing=True)
    assert (cancelled.status, cancelled.open) == ("cancelling", False)


def test_a_paused_job_pauses_its_batches_also_those_to_come(database: Database, me: Principal) -> None:
    with database.write() as session:
        job = start_job(session, me.project_id)
        first = open_stage(session, job)
        stages.extend(session, first.id, [planned(5)])
    with database.write() as session:
        assert lifecycle.control(session, me, job.id, "pause").paused_by == "ada"
        second = open_stage(session, job, 1, "judge")
        stages.extend(session, second.id, [planned(5, plan="2")])
    with database.write() as session:
        assert {session.get_one(Batch, batch.id).paused_by for batch in (first, second)} == {"ada"}
        assert segments.waiting(session, 10) == []
        lifecycle.control(session, me, job.id, "resume")
        assert len(segments.waiting(session, 10)) == 2
        lifecycle.cancel(session, me.project_id, job.id, me)
        with pytest.raises(ConflictError, match="Cannot pause a job with status 'cancelling'"):
            lifecycle.control(session, me, job.id, "pause")
        recorded, _ = events.page(session, session.get_one(type(job), job.id), after=None, limit=9)
        assert [event.type for event in recorded] == ["job.paused", "job.resumed", "job.cancelling"]
