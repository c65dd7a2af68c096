"""Housekeeping recovers jobs: what nobody does is sent again, windows end, and what fails for ever ends too."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import update

from store import leases
from store.jobs import lifecycle, stages
from store.leases import acquire_job
from store.records import Batch, Job
from tasks import heartbeat, housekeeping
from tasks.context import AppContext
from tests.support.jobs import create_job, open_stage, planned, start_job
from tests.support.messages import SentMessages
from tests.tasks.test_housekeeping import dead

pytestmark = pytest.mark.usefixtures("sent")


def later(context: AppContext, job: Job, **values: Any) -> None:
    with context.database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values({"lease_expires_at": 0.0} | values))


def reload(context: AppContext, job: Job) -> Job:
    with context.database.read() as session:
        return session.get_one(Job, job.id)


def test_each_job_goes_on_with_what_it_has_to_do_next_and_once(
    context: AppContext, project: str, sent: SentMessages
) -> None:
    with context.database.write() as session:
        new, running = create_job(session, project), start_job(session, project)
        waiting = create_job(session, project, depends_on=[{"id": running.id, "when": "afterok"}])
        ending = start_job(session, project)
        lifecycle.transition(session, ending.id, "in_progress", "finalizing", outcome="completed")
    housekeeping.recover(context)
    assert sent.calls == []
    for job in (new, running, waiting, ending):
        later(context, job)
    for _ in range(2):
        housekeeping.recover(context)
    assert sorted(sent.calls) == [
        ("advance_job", (running.id,)),
        ("finish_job", (ending.id,)),
        ("validate_job", (new.id,)),
    ]


def test_the_job_of_a_process_that_died_is_taken_up_at_once(
    context: AppContext, project: str, sent: SentMessages
) -> None:
    holder = f"{heartbeat.machine()}/{dead()}/task"
    with context.database.write() as session:
        job = start_job(session, project)
        lease = acquire_job(session, job.id, holder, 60)
        assert lease is not None
    housekeeping.recover(context)
    assert sent.ids("advance_job") == [job.id]
    lost = reload(context, job)
    assert (lost.holder, lost.attempts) == (None, 1)
    assert lost.epoch > lease.epoch  # what it still writes is refused


def test_a_window_that_ends_wakes_the_job_and_ends_its_batches(
    context: AppContext, project: str, sent: SentMessages
) -> None:
    with context.database.write() as session:
        job, new = start_job(session, project), create_job(session, project)
        batch = open_stage(session, job)
        stages.extend(session, batch.id, [planned()])
        for record in (Job, Batch):
            session.execute(update(record).values(expires_at=int(time.time()) - 1))
    housekeeping.recover(context)
    assert sent.ids("advance_job") == [job.id]
    with context.database.read() as session:
        ended = session.get_one(Batch, batch.id)
    assert (ended.status, ended.outcome, ended.open) == ("finalizing", "expired", False)
    assert (reload(context, job).status, reload(context, job).outcome) == ("in_progress", "expired")
    assert (reload(context, new).status, reload(context, new).outcome) == ("finalizing", "expired")


def test_a_job_whose_workers_die_without_end_is_finished_as_failed(
    context: AppContext, project: str, sent: SentMessages
) -> None:
    holder = f"{heartbeat.machine()}/{dead()}/task"
    with context.database.write() as session:
        job = start_job(session, project)
    for _ in range(leases.ATTEMPTS):
        with context.database.write() as session:
            assert acquire_job(session, job.id, holder, 60) is not None
        housekeeping.recover(context)
    housekeeping.recover(context)
    ending = reload(context, job)
    assert (ending.status, ending.outcome) == ("finalizing", "failed")
    assert "the worker that did it was lost" in (ending.errors or [])[0]["message"]


@pytest.mark.races
def test_housekeeping_and_a_jobs_tick_never_wait_for_each_other(context: AppContext, project: str) -> None:
    with context.database.write() as session:
        job = start_job(session, project)
        batch = open_stage(session, job)
        for record in (Job, Batch):
            session.execute(update(record).values(expires_at=int(time.time()) - 1))
        lease = acquire_job(session, job.id, "here/1/advance", 60)
        assert lease is not None
    with ThreadPoolExecutor(1) as pool:
        with context.database.write() as session:
            lease.guard(session)
            kept_house = pool.submit(housekeeping.recover, context)
            time.sleep(1.0)  # it waits for the job by now
            stages.extend(session, batch.id, [planned(3)])
        kept_house.result()
    with context.database.read() as session:
        ended = session.get_one(Batch, batch.id)
    assert (ended.status, ended.outcome, ended.total) == ("finalizing", "expired", 3)
