"""Results of message batches: one for each request, with its type, and Anthropic's name of each error."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from batchyard.endpoints import output_lines
from inference.answers import ANSWERS
from store.records import Batch, Segment
from tasks.context import AppContext
from tasks.finishing import finalize
from tasks.intake import validation
from tests.support.planned import HOLDER, append, reload, started
from tests.support.webapps import upload
from tests.webapp.anthropic.conftest import URL, a_request, create, refusal
from webapp.anthropic import errors

MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "é\u2028"}]}


def answers(*lines: tuple[int, str, int, dict[str, Any]]) -> pa.Table:
    """Answers to lines, each with its custom_id, HTTP status and body."""
    rows = [
        (line, status == 200, output_lines.line(name, status, json.dumps(body).encode(), None), 3, 0, 1, 0.5, 0)
        for line, name, status, body in lines
    ]
    return pa.Table.from_pylist([dict(zip(ANSWERS.names, row, strict=False)) for row in rows], schema=ANSWERS)


def validated(context: AppContext, id_: str) -> Batch:
    batch_id = id_.replace("msgbatch_", "batch_")
    validation.run(context, batch_id, HOLDER)
    with context.database.read() as session:
        return session.get_one(Batch, batch_id)


def finish(context: AppContext, batch: Batch) -> None:
    assert finalize.merge(context, batch.id, HOLDER)
    finalize.end(context, batch.id, HOLDER)


def results(client: FlaskClient, id_: str) -> dict[str, dict[str, Any]]:
    """The results of a batch by custom_id."""
    answer = client.get(f"{URL}/{id_}/results")
    assert (answer.status_code, answer.mimetype) == (200, "application/jsonl")
    return {line["custom_id"]: line["result"] for line in map(json.loads, answer.text.split("\n")[:-1])}


def test_each_request_of_a_cancelled_batch_has_the_result_that_it_came_to(
    client: FlaskClient, context: AppContext
) -> None:
    made = [a_request("good"), a_request("refused"), a_request("bad", max_tokens=None), a_request("late", model="no")]
    id_ = create(client, *made, a_request("never"), a_request("good")).get_json()["id"]
    assert refusal(client.get(f"{URL}/{id_}/results"))[:2] == (409, "conflict_error")
    batch = validated(context, id_)
    with context.database.read() as session:
        pending = select(Segment.number).where(Segment.batch_id == batch.id, Segment.state == "pending")
        number = session.scalars(pending).one()
    too_large = {"type": "error", "error": {"type": "request_too_large", "message": "too long"}}
    lease = started(context.database, batch, number)
    append(context, lease, answers((1, "good", 200, MESSAGE), (2, "refused", 400, too_large)))
    assert client.post(f"{URL}/{id_}/cancel").get_json()["processing_status"] == "canceling"
    finish(context, batch)
    counts = client.get(f"{URL}/{id_}").get_json()["request_counts"]
    assert counts == {"processing": 0, "succeeded": 1, "errored": 4, "canceled": 1, "expired": 0}
    lines = client.get(f"{URL}/{id_}/results").text.split("\n")[:-1]
    assert sorted(json.loads(line)["custom_id"] for line in lines) == [
        "bad",
        "good",
        "good",
        "late",
        "never",
        "refused",
    ]
    assert json.loads(lines[0]) == {"custom_id": "good", "result": {"type": "succeeded", "message": MESSAGE}}
    by_id = results(client, id_)
    assert by_id["never"] == {"type": "canceled"}
    errored = {name: by_id[name]["error"] for name in ("refused", "bad", "late", "good")}
    assert {name: error["error"]["type"] for name, error in errored.items()} == {
        "refused": "request_too_large",
        "bad": "invalid_request_error",
        "late": "not_found_error",
        "good": "invalid_request_error",
    }
    assert {error["type"] for error in errored.values()} == {"error"}
    assert errored["refused"]["request_id"].startswith("req_") and errored["bad"]["request_id"] is None
    assert "max_tokens" in errored["bad"]["error"]["message"]
    assert "already" in errored["good"]["error"]["message"], "its custom_id is used twice"


def test_a_deleted_batch_leaves_no_file(client: FlaskClient, context: AppContext) -> None:
    id_ = create(client, a_request("a")).get_json()["id"]
    batch = validated(context, id_)
    client.post(f"{URL}/{id_}/cancel")
    finish(context, batch)
    assert client.get("/v1/files").get_json()["data"]
    assert client.delete(f"{URL}/{id_}").status_code == 200
    assert client.get("/v1/files").get_json()["data"] == []


def test_results_whose_file_was_deleted_are_not_found(client: FlaskClient, context: AppContext) -> None:
    id_ = create(client, a_request("a")).get_json()["id"]
    batch = validated(context, id_)
    client.post(f"{URL}/{id_}/cancel")
    finish(context, batch)
    client.delete(f"/v1/files/{reload(context.database, batch).error_file_id}")
    status, type_, message = refusal(client.get(f"{URL}/{id_}/results"))
    assert (status, type_) == (404, "not_found_error") and "deleted" in message


def test_requests_of_which_none_can_run_have_their_errors(client: FlaskClient, context: AppContext) -> None:
    id_ = create(client, a_request("bad", max_tokens=None), a_request("late", model="no")).get_json()["id"]
    batch = validated(context, id_)
    assert reload(context.database, batch).status == "failed"
    counts = client.get(f"{URL}/{id_}").get_json()["request_counts"]
    assert counts == {"processing": 0, "succeeded": 0, "errored": 2, "canceled": 0, "expired": 0}
    errored = {name: result["error"]["error"]["type"] for name, result in results(client, id_).items()}
    assert errored == {"bad": "invalid_request_error", "late": "not_found_error"}


def test_a_batch_of_openais_dialect_that_fails_says_of_each_request_why(
    client: FlaskClient, context: AppContext
) -> None:
    lines = [{"custom_id": name, "method": "POST", "url": "/v1/messages", "body": {}} for name in "ab"]
    lines[0]["body"] = a_request("a")["params"]
    file_id = upload(client, b"".join(json.dumps(line).encode() + b"\n" for line in lines)).get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/messages", "completion_window": "24h"}
    id_ = client.post("/v1/batches", json=body).get_json()["id"].replace("batch_", "msgbatch_")
    validated(context, id_)
    errored = {name: result["error"]["error"] for name, result in results(client, id_).items()}
    assert {error["type"] for error in errored.values()} == {"invalid_request_error"}
    assert "other requests of its batch are invalid" in errored["a"]["message"]
    assert "model" in errored["b"]["message"]


def test_a_batch_that_is_cancelled_before_its_validation_has_canceled_requests(
    client: FlaskClient, context: AppContext
) -> None:
    id_ = create(client, a_request("a", max_tokens=None)).get_json()["id"]
    client.post(f"{URL}/{id_}/cancel")
    validated(context, id_)
    ended = client.get(f"{URL}/{id_}").get_json()
    assert (ended["processing_status"], ended["request_counts"]["canceled"]) == ("ended", 1)
    assert results(client, id_) == {"a": {"type": "canceled"}}


@pytest.mark.parametrize(
    ("status", "body", "error", "type_"),
    [
        (400, {"error": {"message": "no", "type": "BadRequestError"}}, None, "invalid_request_error"),
        (422, {"error": {"message": "no"}}, None, "invalid_request_error"),
        (404, {"error": {"message": "no"}}, None, "not_found_error"),
        (429, {"error": {"message": "no"}}, None, "rate_limit_error"),
        (500, {"error": {"message": "no"}}, None, "api_error"),
        (502, {"error": {"message": "no"}}, None, "api_error"),
        (503, {"error": {"message": "no"}}, None, "overloaded_error"),
        (None, None, {"code": "request_timeout", "message": "no"}, "timeout_error"),
        (None, None, {"code": "engine_died", "message": "no"}, "api_error"),
        (None, None, {"code": "invalid_request", "message": "no", "line": 3}, "invalid_request_error"),
        (None, None, {"code": "model_not_found", "message": "no", "line": 3}, "not_found_error"),
    ],
)
def test_an_error_has_the_type_of_its_status_or_of_its_code(
    status: int | None, body: dict[str, Any] | None, error: dict[str, Any] | None, type_: str
) -> None:
    response = None if status is None else {"status_code": status, "request_id": "req_1", "body": body}
    named = errors.of_line({"custom_id": "a", "response": response, "error": error})
    assert (named.error.type, named.error.message) == (type_, "no")
    assert named.request_id == (None if status is None else "req_1")
