"""The pages show a stage of a job beside other batches, without what its job alone may do."""

from __future__ import annotations

import re

import pytest
from flask.testing import FlaskClient

from store.records import Batch
from tasks.context import AppContext
from tests.support.jobs import end_stage, running_stage


@pytest.fixture
def stage(context: AppContext, client: FlaskClient) -> Batch:
    return running_stage(context)


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_the_overview_names_a_stage(context: AppContext, client: FlaskClient, stage: Batch, ended: bool) -> None:
    if ended:
        end_stage(context, stage)
    assert re.search(rf'/batches/{stage.id}"[^<]*<bdi>argue</bdi>', client.get("/").text)


def test_a_running_stages_page_shows_its_requests_and_whose_it_is(client: FlaskClient, stage: Batch) -> None:
    page = client.get(f"/batches/{stage.id}").text
    assert stage.job_id and stage.job_id in page
    assert "one" in page and "to r1" in page
    assert "available at the end" in page
    assert "/cancel" not in page and "again=" not in page


def test_an_ended_stages_page_shows_its_files_and_errors(
    context: AppContext, client: FlaskClient, stage: Batch
) -> None:
    end_stage(context, stage)
    page = client.get(f"/batches/{stage.id}").text
    assert "three" in page and "line 3 failed" in page and "batch_expired" in page
    assert "/retry" not in page and "again=" not in page
    assert [line[:13] for line in client.get(f"/batches/{stage.id}/input").text.splitlines()] == ['{"custom_id":'] * 3


def test_what_the_page_does_not_offer_is_refused_too(client: FlaskClient, stage: Batch) -> None:
    csrf = re.search(r'name="csrf" value="([0-9a-f]{64})"', client.get("/").text)
    assert csrf is not None
    form = {"csrf": csrf[1], "once": "0" * 32}
    answers = [client.post(f"/batches/{stage.id}/{action}", data=form) for action in ("cancel", "retry")]
    for answer in (*answers, client.get(f"/new?again={stage.id}")):
        assert answer.status_code == 409
        assert str(stage.job_id) in answer.text
