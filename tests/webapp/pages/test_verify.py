"""POST /v1/batches/{id}/verify: a sample of a batch's requests as a new batch, and what it shows of the first."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from store.records import Batch, File
from tasks.context import AppContext
from tests.support.messages import SentMessages
from tests.support.planned import answers, end_batch, finish_segment, plan_batch, reload
from tests.support.webapps import client_of, project_of
from tests.webapp.pages.conftest import csrf_of

TEXTS = [f"question {number}" for number in range(30)]


@pytest.fixture
def api(context: AppContext) -> FlaskClient:
    return client_of(context)


@pytest.fixture
def ended(context: AppContext, api: FlaskClient, sent: SentMessages) -> Batch:
    """A batch of 30 requests, of which the last has failed."""
    batch = plan_batch(context, project_of(context, "default"), TEXTS)
    finish_segment(context, batch, answers(range(1, 31), failed={30: "engine_error"}))
    end_batch(context, batch)
    return reload(context.database, batch)


def requests(context: AppContext, batch_id: str) -> list[dict[str, Any]]:
    with context.database.read() as session:
        batch = session.get_one(Batch, batch_id)
        sha256 = session.scalar(select(File.sha256).where(File.id == batch.input_file_id))
    return [json.loads(line) for line in context.artifacts.read(str(sha256)).splitlines()]


def test_a_sample_of_the_answered_requests_becomes_a_batch_once(
    api: FlaskClient, context: AppContext, ended: Batch
) -> None:
    url, body = f"/v1/batches/{ended.id}/verify", {"sample": 10, "seed": 3, "model": "echo"}
    first, again = (api.post(url, json=body, headers={"Idempotency-Key": "one"}) for _ in range(2))
    assert first.status_code == 200, first.text
    made = first.get_json()
    assert again.get_json()["id"] == made["id"]
    assert made["metadata"] == {"verifies": ended.id}
    step = {"step": "verify", "batch_id": ended.id, "sample": 10, "seed": 3, "tolerance": 0, "alone": False}
    assert made["batchyard"]["post_process"] == [step | {"replica": None}]
    asked, lines = requests(context, made["id"]), requests(context, ended.id)
    order = [lines.index(line) for line in asked]
    assert len(set(order)) == 10 and order != sorted(order) and 29 not in order
    everything = requests(context, api.post(url, json={}).get_json()["id"])
    assert len(everything) == 29
    priced = requests(context, api.post(url, json={"sample": 1, "logprobs": True}).get_json()["id"])
    assert priced[0]["body"]["logprobs"] is True


def test_what_cannot_be_verified_says_why(api: FlaskClient, context: AppContext, ended: Batch) -> None:
    url = f"/v1/batches/{ended.id}/verify"
    assert client_of(context, project="other").post(url, json={}).status_code == 404
    running = plan_batch(context, ended.project_id, TEXTS)
    refused = api.post(f"/v1/batches/{running.id}/verify")
    assert (refused.status_code, "has no answers to verify" in refused.text) == (409, True)
    absent = api.post(url, json={"replica": 1})
    assert (absent.status_code, absent.get_json()["error"]["param"]) == (400, "replica")
    assert "Model echo has 1 replica, counted from 0, and none is number 1." in absent.text
    wrong_bodies = ({"sample": 0}, {"sample": 10_001}, {"tolerance": -1}, {"seed": "x"}, {"other": 1})
    for wrong in (*wrong_bodies, {"replica": -1}, {"alone": "yes"}):
        assert api.post(url, json=wrong).status_code == 400
    assert api.delete(f"/v1/files/{ended.input_file_id}").status_code == 200
    assert "were deleted or have expired" in api.post(url, json={}).text


def test_the_page_has_a_button_and_shows_the_outcome_and_the_manifest(
    client: FlaskClient, context: AppContext, ended: Batch
) -> None:
    page = client.get(f"/batches/{ended.id}").text
    assert '<h2 id="manifest-heading">Manifest</h2>' in page and "<dt>Signature</dt><dd>none</dd>" in page
    once = page.partition("Verify…")[2].partition('name="once" value="')[2].partition('"')[0]
    sent_form = {"csrf": csrf_of(client), "once": once, "sample": "20", "alone": "1", "replica": "0"}
    first, again = (client.post(f"/batches/{ended.id}/verify", data=sent_form) for _ in range(2))
    assert (first.status_code, first.location) == (303, again.location)
    again_id = first.location.rpartition("/")[2]
    with context.database.write() as session:
        step = session.get_one(Batch, again_id).post_process[0]
        assert (step["sample"], step["alone"], step["replica"]) == (20, True, 0)
        batch = session.get_one(Batch, ended.id)
        counts = {"asked": 20, "equal": 20, "different": 0, "failed": 0, "low": 0, "high": 0.015, "changes": 0}
        batch.verification = {**counts, "batch_id": again_id, "at": 1_795_860_000}
    page = client.get(f"/batches/{ended.id}").text
    assert f'<dt>Verified</dt><dd><a href="/batches/{again_id}">' in page and "2026-11-28" in page
    assert "0 of 20 differ" in page and "at most 1.5 % of all" in page


def test_the_page_says_why_a_manifest_is_not_signed(
    client: FlaskClient, context: AppContext, sent: SentMessages
) -> None:
    batch = plan_batch(context, project_of(context, "default"), TEXTS[:1])
    finish_segment(context, batch, answers([1]))
    context.settings.signing_key.write_text("no key")
    end_batch(context, batch)
    assert "none: <bdi>the signing key cannot be used: ValueError" in client.get(f"/batches/{batch.id}").text
