"""The pages of a batch with a plan: its form, and what its sample says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flask.testing import FlaskClient
from sqlalchemy import select, update

from store import batches
from store.records import Batch, Job, Project, ResultChunk
from tasks.context import AppContext
from tests.support.jobs import start_job
from tests.support.planned import answers, finish_segment, plan_batch
from tests.support.webapps import client_of, project_of
from tests.webapp.pages.starting.test_batch import only_batch, send


def test_the_form_offers_to_answer_some_requests_first(client: FlaskClient, context: AppContext) -> None:
    assert "Answer 100 requests first" in client.get("/new").text
    assert send(client, text="one\ntwo", plan="100").status_code == 303
    assert only_batch(context).sample_rows == 100


def test_the_page_shows_the_plan_while_the_batch_waits_for_it(client: FlaskClient, context: AppContext) -> None:
    with context.database.read() as session:
        project_id = session.scalars(select(Project.id)).one()
    batch = plan_batch(context, project_id, ["one", "two"])
    assert "were drawn at random" not in client.get(f"/batches/{batch.id}").text
    with context.database.write() as session:
        values = {"sample_rows": 1, "sample_segments": 1, "paused_at": 1, "paused_by": batches.PLAN}
        session.execute(update(Batch).where(Batch.id == batch.id).values(**values))
    text = client.get(f"/batches/{batch.id}").text
    assert "0 of 2 requests were drawn at random and answered" in text and "tokens out" in text
    assert "Paused</strong> by <bdi>its plan</bdi>" in text


def test_a_file_with_no_more_requests_than_the_sample_is_the_sample(context: AppContext) -> None:
    api = client_of(context)
    batch = plan_batch(context, project_of(context), ["one", "two"])
    with context.database.write() as session:
        session.execute(update(Batch).where(Batch.id == batch.id).values(sample_rows=9))

    def plan() -> Any:
        report = api.get(f"/v1/batches/{batch.id}/plan").get_json()
        state = api.get(f"/v1/batches/{batch.id}").get_json()["batchyard"]["plan"]
        assert state == {"rows": 9, "sampled": report["sampled"]}
        return report

    assert (plan()["sampled"], plan()["sample"]["answered"]) == (False, 0)
    finish_segment(context, batch, answers([1, 2]))
    report = plan()
    assert (report["sampled"], report["sample"]["answered"], report["forecast"]["shares"]["failed"]["high"]) == (
        *(True, 2),
        0.0,
    )


def test_a_job_with_no_more_items_than_the_sample_is_sampled_once_all_have_ended(context: AppContext) -> None:
    api = client_of(context)
    with context.database.write() as session:
        job = start_job(session, project_of(context), total=3, sample_rows=9)
    for completed, is_sampled in ((2, False), (3, True)):
        with context.database.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(completed=completed))
        plan = api.get(f"/v1/jobs/{job.id}").get_json()["batchyard"]["plan"]
        assert plan == {"rows": 9, "sampled": is_sampled}


def test_the_page_is_there_without_what_the_artifact_store_has_lost(client: FlaskClient, context: AppContext) -> None:
    with context.database.read() as session:
        project_id = session.scalars(select(Project.id)).one()
    batch = plan_batch(context, project_id, ["one", "two"])
    finish_segment(context, batch, answers([1]))
    with context.database.write() as session:
        values = {"sample_rows": 1, "sample_segments": 1, "paused_at": 1, "paused_by": batches.PLAN}
        session.execute(update(Batch).where(Batch.id == batch.id).values(**values))
        lost = session.scalars(select(ResultChunk.sha256)).all()
    for sha256 in lost:
        Path(context.artifacts.path(sha256)).unlink()
    page = client.get(f"/batches/{batch.id}")
    assert (page.status_code, "were drawn at random" in page.text) == (200, False)
