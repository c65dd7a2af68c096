"""The pages say that an engine died: when, the whole reason, with which requests, and what follows."""

from __future__ import annotations

import re

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from store import batches, holds
from store.records import Batch, Project
from tasks.context import AppContext
from tests.support.jobs import running_stage
from tests.support.planned import plan_batch

REASON = "killed by SIGKILL: out of memory <b>" + " and so on" * 60 + ". Remedy: lower max_model_len"


@pytest.fixture
def batch(context: AppContext) -> Batch:
    """A batch with which an engine has died four times."""
    with context.database.read() as session:
        project_id = session.scalars(select(Project.id)).one()
    batch = plan_batch(context, project_id, ["one"])
    with context.database.write() as session:
        for number in range(4):
            facts = {"model": "echo", "engine": f"engine {number}", "replica": 1, "reason": REASON, "requests": 7}
            holds.record_death(session, batch.id, **facts, next="runs_alone")  # type: ignore[arg-type]
    return batch


def words(client: FlaskClient, path: str, **headers: str) -> str:
    text = re.sub(r"<[^>]+>", " ", client.get(path, headers=headers).text)
    return " ".join(text.split()).replace("&lt;", "<").replace("&gt;", ">")


def test_the_batchs_page_has_a_banner_with_the_whole_reason(client: FlaskClient, batch: Batch) -> None:
    text = words(client, f"/batches/{batch.id}")
    assert "Engines died 4 times, the last one at" in text
    assert f"model echo , replica 1, with 7 requests in flight. {REASON} They run again, with nothing else" in text


def test_a_batch_on_hold_is_never_beside_a_green_on_track(
    client: FlaskClient, context: AppContext, batch: Batch
) -> None:
    assert "on track" in words(client, f"/batches/{batch.id}")
    with context.database.write() as session:
        assert holds.hold_after_deaths(session, "echo") is not None
    text = words(client, f"/batches/{batch.id}")
    assert "On hold." in text and REASON in text
    assert "on track" not in text and "at risk" in text


def test_the_models_page_keeps_the_failure_when_its_batch_was_cancelled_until_an_engine_answers(
    client: FlaskClient, context: AppContext, batch: Batch
) -> None:
    with context.database.write() as session:
        holds.hold_after_deaths(session, "echo")
        batches.cancel(session, batch.project_id, batch.id)
    text = words(client, "/models/echo")
    assert f"with 7 requests in it: {REASON}" in text and "No engine has answered since." in text
    with context.database.write() as session:
        holds.engine_answered(session, "echo")
    assert "died" not in words(client, "/models/echo")


def test_the_jobs_page_has_the_banner_of_its_stages_and_is_not_on_track_while_one_is_held(
    client: FlaskClient, context: AppContext
) -> None:
    stage = running_stage(context)
    model = next(iter(stage.models), "echo")
    with context.database.write() as session:
        for number in range(4):
            facts = {"model": model, "engine": f"engine {number}", "replica": 0, "reason": REASON, "requests": 2}
            holds.record_death(session, stage.id, **facts, next="ends_run")  # type: ignore[arg-type]
    text = words(client, f"/jobs/{stage.job_id}", **{"HX-Request": "true"})
    assert "Engines died 4 times" in text and REASON in text and "on track" in text
    with context.database.write() as session:
        holds.hold_after_deaths(session, model)
    text = words(client, f"/jobs/{stage.job_id}", **{"HX-Request": "true"})
    assert "On hold." in text and "on track" not in text
