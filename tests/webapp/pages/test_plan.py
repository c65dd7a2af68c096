"""The pages of a batch with a plan: its form, and what its sample says."""

from __future__ import annotations

from flask.testing import FlaskClient
from sqlalchemy import select, update

from store import batches
from store.records import Batch, Project
from tasks.context import AppContext
from tests.support.planned import plan_batch
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
