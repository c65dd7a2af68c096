"""The page of a batch takes corrected requests, and sends them with what else has no answer."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import update

from store import files
from store.records import Batch
from tasks.context import AppContext
from tests.support.messages import SentMessages
from tests.support.planned import answers, end_batch, finish_segment, plan_batch
from tests.support.stacks import a_chat
from tests.support.webapps import client_of, project_of, upload
from tests.webapp.pages.conftest import csrf_of


def line(custom_id: str, **fields: Any) -> bytes:
    return json.dumps({**a_chat(custom_id, "hello"), **fields}).encode() + b"\n"


@pytest.fixture
def failed(context: AppContext, client: FlaskClient, sent: SentMessages) -> str:
    """The id of a batch of three lines whose second failed validation."""
    api = client_of(context)
    file_id = upload(api, line("a") + line("b", url="/nope") + line("c")).get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = str(api.post("/v1/batches", json=body).get_json()["id"])
    errors = [{"code": "invalid_url", "line": 2, "message": "not this one", "param": "url"}]
    with context.database.write() as session:
        values: dict[str, Any] = {"status": "failed", "failed_at": 2_000_000_000, "errors": errors}
        session.execute(update(Batch).where(Batch.id == batch_id).values(**values))
    return batch_id


def test_corrected_lines_are_uploaded_on_the_page_and_sent_with_the_others(
    client: FlaskClient, context: AppContext, failed: str
) -> None:
    page = client.get(f"/batches/{failed}").text
    once = page.partition("Retry with corrections")[2].partition('name="once" value="')[2].partition('"')[0]

    def send(content: bytes | None) -> Any:
        file = (io.BytesIO(content or b""), "fixed.jsonl" if content is not None else "")
        data = {"csrf": csrf_of(client), "once": once, "file": file}
        return client.post(f"/batches/{failed}/retry", data=data, content_type="multipart/form-data")

    first, again = send(line("b", line=2)), send(line("b", line=2))
    assert first.status_code == 303 and first.headers["location"] == again.headers["location"]
    with context.database.read() as session:
        retried = session.get_one(Batch, first.headers["location"].rpartition("/")[2])
        source = files.find(session, retried.project_id, retried.input_file_id)
    assert retried.retry_of == failed and source is not None
    lines = context.artifacts.read(source.sha256).splitlines()
    assert list(map(json.loads, lines)) == [json.loads(line(custom_id)) for custom_id in "abc"]


def test_a_wrong_correction_and_a_missing_file_are_refused_with_the_message_of_the_api(
    client: FlaskClient, failed: str
) -> None:
    for file, says in (
        ((io.BytesIO(line("zzz")), "fixed.jsonl"), "Line 1 of the corrected lines: no request without an answer is"),
        ((io.BytesIO(b""), ""), "Missing required parameter"),
    ):
        data = {"csrf": csrf_of(client), "file": file}
        refused = client.post(f"/batches/{failed}/retry", data=data, content_type="multipart/form-data")
        assert (refused.status_code, says in refused.text) == (400, True), refused.text


def test_the_page_of_a_failed_request_says_how_to_fix_it_and_retries_it_as_corrected(
    client: FlaskClient, context: AppContext, sent: SentMessages
) -> None:
    batch = plan_batch(context, project_of(context), ["one", "two", "three"])
    finish_segment(context, batch, answers(range(1, 4), failed={2: "context_length_exceeded", 3: "odd"}))
    batch = end_batch(context, batch)
    for path in (f"/batches/{batch.id}", f"/batches/{batch.id}/requests/2"):
        assert "Shorten the prompt, lower max_tokens" in client.get(path).text
    page = client.get(f"/batches/{batch.id}/requests/2").text
    assert "Retry all 2 failed requests" in page and "Correct and retry" in page
    assert "Retry all" not in client.get(f"/batches/{batch.id}/requests/1").text

    def send(corrected: str) -> Any:
        data = {"csrf": csrf_of(client), "line": "2", "corrected": corrected}
        return client.post(f"/batches/{batch.id}/retry", data=data)

    for wrong in ("{", "[]"):
        assert send(wrong).status_code == 400
    location = send(line("r2", body={"model": "echo", "messages": []}).decode()).headers["location"]
    with context.database.read() as session:
        retried = session.get_one(Batch, location.rpartition("/")[2])
        source = files.find(session, retried.project_id, retried.input_file_id)
    assert source is not None
    lines = [json.loads(each) for each in context.artifacts.read(source.sha256).splitlines()]
    assert [each["custom_id"] for each in lines] == ["r2", "r3"] and lines[0]["body"]["messages"] == []
