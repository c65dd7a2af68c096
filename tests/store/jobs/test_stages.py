"""A stage is an open batch: it gets segments while others run, ends when it is sealed, and belongs to its job."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import select, update

from batchyard.errors import ConflictError
from store import batches, events, holds, segments
from store.database import Database
from store.jobs import lifecycle, reading, stages
from store.records import Batch, Job, Segment
from tests.support.jobs import MODELS, open_stage, planned, start_job, start_next


def reload(database: Database, batch: Batch) -> Batch:
    with database.read() as session:
        return session.get_one(Batch, batch.id)


def test_a_stages_batch_has_the_jobs_terms(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project, completion_window="2h", due_after=60, output_expires_after=3600)
        batch = open_stage(session, job, 1, "judge")
        (stage,) = stages.of_job(session, job.id)
    assert (stage.number, stage.name, stage.batch_id, stage.cursor, stage.issued) == (1, "judge", batch.id, 0, 0)
    kept = reload(database, batch)
    for name in ("project_id", "completion_window", "expires_at", "due_at", "simulated", "output_expires_after"):
        assert getattr(kept, name) == getattr(job, name), name
    assert (kept.job_id, kept.stage, kept.status, kept.open, kept.planned) == (
        job.id,
        "judge",
        "in_progress",
        True,
        True,
    )
    assert (kept.total, kept.input_file_id, kept.model, kept.models) == (0, "", None, {})


def test_a_jobs_usage_is_the_sum_of_its_batches_in_whole_numbers(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        for number, name in enumerate(("draft", "judge"), 1):
            batch = open_stage(session, job, number, name)
            session.execute(update(Batch).where(Batch.id == batch.id).values(input_tokens=2**40, output_tokens=3))
        usage = reading.usage(session, [job.id])[job.id]
    assert (usage.input, usage.output) == (2**41, 6)
    assert {type(tokens) for tokens in usage} == {int}, "a sum of PostgreSQL is a decimal, which JSON does not know"


def test_stages_are_listed_by_number_and_one_that_is_known_gets_its_batch(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        session.add_all(
            stages.JobStage(job_id=job.id, number=number, name=name, expected=30)
            for number, name in ((1, "judge"), (0, "argue"))
        )
        batch = open_stage(session, job, 1, "judge")
        listed = stages.of_job(session, job.id)
    assert [(stage.name, stage.batch_id, stage.expected) for stage in listed] == [
        ("argue", None, 30),
        ("judge", batch.id, 30),
    ]


def test_segments_come_while_others_run_and_each_names_its_plan(database: Database, project: str) -> None:
    with database.write() as session:
        batch = open_stage(session, start_job(session, project))
        stages.extend(session, batch.id, [planned(3, plan="1"), planned(2, plan="1", row_group=1)])
    first = start_next(database)
    with database.write() as session:
        stages.extend(session, batch.id, [planned(4, plan="2", model="other")])
    second, third = start_next(database), start_next(database)
    assert [(lease.number, lease.plan_sha256[0], lease.row_group) for lease in (first, second, third)] == [
        (0, "1", 0),
        (1, "1", 1),
        (2, "2", 0),
    ]
    assert third.job_id == batch.job_id
    assert third.model == MODELS["other"]
    with database.read() as session:
        assert segments.plans(session, batch.id) == [("1" * 64, 0), ("1" * 64, 1), ("2" * 64, 0)]
    extended = reload(database, batch)
    assert (extended.total, extended.model, extended.models) == (9, None, MODELS)


def test_a_model_whose_configuration_was_replaced_keeps_the_new_one(database: Database, project: str) -> None:
    present = MODELS["echo"] | {"max_in_flight": 7}
    with database.write() as session:
        batch = open_stage(session, start_job(session, project))
        stages.extend(session, batch.id, [planned()])
        batches.set_model(session, batch.id, "echo", present)
        stages.extend(session, batch.id, [planned(row_group=1)])
    assert reload(database, batch).models == {"echo": present}
    assert reload(database, batch).model == "echo"


def test_an_ordinary_batchs_segments_are_the_row_groups_of_its_plan(database: Database, new_batch: Any) -> None:
    batch = new_batch(5, 5)
    with database.read() as session:
        assert segments.plans(session, batch.id) == [("1" * 64, 0), ("1" * 64, 1)]
    leases = [start_next(database), start_next(database)]
    assert [(lease.row_group, lease.job_id) for lease in leases] == [(0, None), (1, None)]


def test_an_open_batch_waits_for_more_and_a_sealed_one_ends_when_all_is_done(database: Database, project: str) -> None:
    with database.write() as session:
        batch = open_stage(session, start_job(session, project))
        stages.extend(session, batch.id, [planned()])
        session.execute(update(Segment).values(state="done"))
        batches.end_running(session)
        assert not batches.any_ends(session)
        stages.extend(session, batch.id, [planned(row_group=1)])
        stages.seal(session, batch.id)
        assert not batches.any_ends(session)
        session.execute(update(Segment).values(state="done"))
        assert batches.any_ends(session)
        batches.end_running(session)
    assert (reload(database, batch).status, reload(database, batch).outcome) == ("finalizing", "completed")


def test_a_batch_that_never_got_a_segment_completes_when_it_is_sealed(database: Database, project: str) -> None:
    with database.write() as session:
        batch = open_stage(session, start_job(session, project))
        stages.seal(session, batch.id)
        batches.end_running(session)
        session.execute(update(Batch).values(lease_expires_at=0.0))
        assert batches.claim_finishable(session, 60) == [batch.id]
    assert (reload(database, batch).outcome, reload(database, batch).total) == ("completed", 0)


@pytest.mark.parametrize("end", ["seal", "expire", "cancel"])
def test_a_batch_that_is_closed_takes_no_segment(database: Database, project: str, end: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        batch = open_stage(session, job)
        if end == "seal":
            stages.seal(session, batch.id)
        elif end == "cancel":
            stages.cancel_batches(session, job.id)
        else:
            session.execute(update(Batch).values(expires_at=int(time.time()) - 1))
            assert batches.expire(session) == [batch.id]
    with pytest.raises(ConflictError, match="not open any more"), database.write() as session:
        stages.extend(session, batch.id, [planned()])
    assert (reload(database, batch).total, reload(database, batch).open) == (0, False)


def test_a_stages_batch_is_cancelled_by_its_job_alone(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        batch = open_stage(session, job)
    with (
        pytest.raises(ConflictError, match=f"stage 'argue' of job '{job.id}'; cancel the job"),
        database.write() as session,
    ):
        batches.cancel(session, project, batch.id)
    assert reload(database, batch).status == "in_progress"


def test_a_job_that_stops_leaves_alone_what_has_stopped(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        expired, running = open_stage(session, job), open_stage(session, job, 1, "judge")
        session.execute(update(Batch).where(Batch.id == expired.id).values(expires_at=int(time.time()) - 1))
        batches.expire(session)
        stages.cancel_batches(session, job.id)
    assert [(reload(database, batch).status, reload(database, batch).outcome) for batch in (expired, running)] == [
        ("finalizing", "expired"),
        ("cancelling", "cancelled"),
    ]


def test_a_stages_batch_records_no_events(database: Database, project: str) -> None:
    with database.write() as session:
        batch = open_stage(session, start_job(session, project))
        stages.extend(session, batch.id, [planned()])
        holds.hold(session, "echo", "it does not start")
        assert batches.set_sla(session, batch, "late") is False
        session.execute(update(Batch).values(status="finalizing", outcome="completed"))
        assert batches.transition(session, batch.id, "finalizing", "completed")
        assert events.page(session, batch, after=None, limit=10) == ([], False)
    assert reload(database, batch).sla == "late"


def test_the_jobs_window_ends_its_batches_too(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        batch = open_stage(session, job)
        for record in (Job, Batch):
            session.execute(update(record).values(expires_at=int(time.time()) - 1))
        assert batches.expire(session) == [batch.id]
        assert lifecycle.expire(session) == [job.id]
        assert session.scalars(select(Batch.outcome)).all() == ["expired"]
