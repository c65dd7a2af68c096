"""The pages show an open batch at every point of its life, though it has no file before its end."""

from __future__ import annotations

import json

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from store import batches
from store.keys import Principal
from store.records import Batch, Project
from tasks.context import AppContext
from tasks.intake import appending
from tests.support.batches import open_batch
from tests.support.planned import answers, end_batch, finish_segment
from tests.support.stacks import a_chat


@pytest.fixture
def batch(context: AppContext, client: FlaskClient) -> Batch:
    """An open batch without requests."""
    with context.database.write() as session:
        return open_batch(session, session.scalars(select(Project.id)).one())


def add(context: AppContext, batch: Batch, custom_id: str) -> None:
    line = json.dumps(a_chat(custom_id, f"hello {custom_id}")).encode()
    appending.run(context, batch.project_id, batch.id, line, None)


def close(context: AppContext, batch: Batch) -> None:
    with context.database.write() as session:
        batches.close(session, Principal(batch.project_id, False, None, "ada"), batch.id)


def test_an_open_batch_says_that_it_waits_for_requests(client: FlaskClient, batch: Batch) -> None:
    page = client.get(f"/batches/{batch.id}").text
    assert "waiting for more" in page and "available at the end" in page
    assert "open batch" in page
    assert 'class="state open"' in client.get("/").text


def test_its_requests_are_shown_as_they_come(context: AppContext, client: FlaskClient, batch: Batch) -> None:
    add(context, batch, "r1")
    page = client.get(f"/batches/{batch.id}").text
    assert "hello r1" in page and "Waiting for its turn" in page
    finish_segment(context, batch, answers([1]))
    page = client.get(f"/batches/{batch.id}").text
    assert "to r1" in page and "waiting for more" in page


def test_a_closed_one_is_like_any_other(context: AppContext, client: FlaskClient, batch: Batch) -> None:
    add(context, batch, "r1")
    finish_segment(context, batch, answers([1]))
    close(context, batch)
    page = client.get(f"/batches/{batch.id}").text
    assert "waiting for more" not in page and "closed" in page
    end_batch(context, batch)
    page = client.get(f"/batches/{batch.id}").text
    assert "to r1" in page and "available at the end" not in page
    assert json.loads(client.get(f"/batches/{batch.id}/input").text) == a_chat("r1", "hello r1")


def test_one_that_never_got_a_request_has_a_page_too(context: AppContext, client: FlaskClient, batch: Batch) -> None:
    close(context, batch)
    end_batch(context, batch)
    assert client.get(f"/batches/{batch.id}").status_code == 200
    assert client.get(f"/batches/{batch.id}/requests").status_code == 200
    assert client.get("/files").status_code == 200
