"""Message batches through the API: made, looked at, listed, cancelled and deleted, and the same in OpenAI's dialect."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import func, select, update

from store.records import Batch, Event
from tasks.context import AppContext
from tests.support.webapps import client_of
from tests.webapp.anthropic.conftest import URL, a_request, create, of_openai, refusal

HEADERS = {"anthropic-version": "2023-06-01"}


def batches_of(context: AppContext) -> int:
    with context.database.read() as session:
        return session.scalar(select(func.count()).select_from(Batch)) or 0


def set_status(context: AppContext, batch_id: str, status: str) -> None:
    with context.database.write() as session:
        values: dict[str, Any] = {"status": status, f"{status}_at": 1_800_000_000}
        session.execute(update(Batch).where(Batch.id == batch_id).values(**values))


def test_a_message_batch_is_a_batch_of_a_file_with_a_line_for_each_request(client: FlaskClient) -> None:
    answer = client.post(URL, json={"requests": [a_request("a"), a_request("b", "é", top_k=3)]}, headers=HEADERS)
    made = answer.get_json()
    assert answer.status_code == 200
    assert made["id"].startswith("msgbatch_") and made["type"] == "message_batch"
    assert (made["processing_status"], made["results_url"], made["ended_at"]) == ("in_progress", None, None)
    assert made["request_counts"] == {"processing": 2, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    lasts = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert lasts.total_seconds() == 24 * 3600
    batch = client.get(f"/v1/batches/{made['id'].replace('msgbatch_', 'batch_')}").get_json()
    assert (batch["endpoint"], batch["batchyard"]["on_invalid"]) == ("/v1/messages", "skip")
    lines = client.get(f"/v1/files/{batch['input_file_id']}/content").text.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"custom_id": "a", "method": "POST", "url": "/v1/messages", "body": a_request("a")["params"]},
        {"custom_id": "b", "method": "POST", "url": "/v1/messages", "body": a_request("b", "é", top_k=3)["params"]},
    ]


def test_what_batches_have_beside_their_requests_may_stand_behind_them(client: FlaskClient) -> None:
    made = create(client, a_request("a"), metadata={"name": "mine"}, completion_window="2h", priority="low").get_json()
    batch = client.get(f"/v1/batches/{made['id'].replace('msgbatch_', 'batch_')}").get_json()
    assert (batch["metadata"], batch["completion_window"]) == ({"name": "mine"}, "2h")
    assert (batch["batchyard"]["name"], batch["batchyard"]["priority"]) == ("mine", "low")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "Missing required parameter: 'requests'"),
        ({"requests": []}, "Missing required parameter: 'requests'"),
        ({"requests": "x"}, "'requests' must be a list"),
        ({"requests": [a_request("a"), 1]}, "'requests.1' (request 2) must be an object"),
        ({"requests": [{"params": {}}]}, "Missing required parameter: 'requests.0.custom_id'"),
        ({"requests": [{"custom_id": "a"}]}, "Missing required parameter: 'requests.0.params'"),
        ({"requests": [{"custom_id": 1, "params": {}}]}, "'requests.0.custom_id': it must be a text"),
        ({"requests": [{"custom_id": "a", "params": []}]}, "'requests.0.params': it must be an object"),
        ({"requests": [{"custom_id": "a", "params": {}, "url": "/"}]}, "Unknown parameter: 'requests.0.url'"),
        ({"requests": [a_request("a")], "model": "echo"}, "Unknown parameter: 'model'"),
        ({"requests": [a_request("a")], "completion_window": "1s"}, "'completion_window'"),
    ],
)
def test_a_body_of_another_shape_is_refused_and_makes_nothing(
    client: FlaskClient, context: AppContext, body: dict[str, Any], says: str
) -> None:
    status, type_, message = refusal(client.post(URL, json=body))
    assert (status, type_) == (400, "invalid_request_error")
    assert says in message
    assert batches_of(context) == 0 and client.get("/v1/files").get_json()["data"] == []


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([a_request(str(number)) for number in range(101)], "more than 100 requests"),
        ([a_request("a", "x" * 300_000)], "longer than 1000 bytes"),
        ([a_request(str(number), "x" * 600) for number in range(80)], "larger than 50000 bytes"),
        ([a_request("a", "x" * 2_000_000)], "larger than 1098576 bytes"),
    ],
)
def test_a_body_that_is_too_large_is_refused_and_makes_nothing(
    client: FlaskClient, context: AppContext, requests: list[Any], says: str
) -> None:
    status, type_, message = refusal(create(client, *requests))
    assert (status, type_) == (413, "request_too_large")
    assert says in message
    assert batches_of(context) == 0
    assert list((context.settings.data / "artifacts").rglob("*")) in (
        [],
        [context.settings.data / "artifacts/incoming"],
    )


def test_a_deployment_without_a_model_for_messages_says_so_before_it_reads_anything(
    client: FlaskClient, context: AppContext
) -> None:
    context.models["echo"] = context.models["echo"].model_copy(update={"endpoints": ["/v1/embeddings"]})
    assert refusal(client.post(URL, data=b"{")) == (
        400,
        "invalid_request_error",
        "Invalid endpoint: /v1/messages. Supported values: '/v1/embeddings'. (invalid_value)",
    )


def test_the_same_idempotency_key_and_body_make_one_batch_and_another_body_is_a_conflict(client: FlaskClient) -> None:
    def send(text: str, key: str = "k") -> Any:
        return client.post(URL, json={"requests": [a_request("a", text)]}, headers={"Idempotency-Key": key})

    assert send("x").get_json()["id"] == send("x").get_json()["id"] != send("x", "other").get_json()["id"]
    refused = send("y")
    assert refusal(refused)[:2] == (409, "conflict_error")
    assert refused.headers["x-should-retry"] == "false"


def test_a_key_may_stand_in_either_header_and_must_be_good(client: FlaskClient) -> None:
    key = client.environ_base["HTTP_AUTHORIZATION"].removeprefix("Bearer ")
    stranger = client.application.test_client()
    assert stranger.get(URL, headers={"x-api-key": key}).status_code == 200
    for headers, says in (({}, "didn't provide an API key"), ({"x-api-key": "sk-no"}, "Incorrect API key")):
        status, type_, message = refusal(stranger.get(URL, headers=headers))
        assert (status, type_) == (401, "authentication_error") and says in message


def test_a_batch_of_either_dialect_is_read_cancelled_and_listed_in_both(client: FlaskClient) -> None:
    theirs = create(client, a_request("a")).get_json()["id"].removeprefix("msgbatch_")
    ours, chat = of_openai(client), of_openai(client, "/v1/chat/completions")
    assert [batch["id"] for batch in client.get("/v1/batches").get_json()["data"]] == [
        f"batch_{id_}" for id_ in (chat, ours, theirs)
    ]
    assert [batch["id"] for batch in client.get(URL).get_json()["data"]] == [f"msgbatch_{ours}", f"msgbatch_{theirs}"]
    assert client.post(f"/v1/batches/batch_{theirs}/cancel").get_json()["status"] == "cancelling"
    cancelled = client.post(f"{URL}/msgbatch_{ours}/cancel").get_json()
    assert cancelled["processing_status"] == "canceling" and cancelled["cancel_initiated_at"]
    assert client.get(f"{URL}/msgbatch_{theirs}").get_json()["processing_status"] == "canceling"
    assert client.get(f"/v1/batches/batch_{ours}").get_json()["status"] == "cancelling"


def test_a_batch_of_another_endpoint_is_no_message_batch_and_says_where_it_is(client: FlaskClient) -> None:
    chat = of_openai(client, "/v1/chat/completions")
    for answer in (
        client.get(f"{URL}/msgbatch_{chat}"),
        client.post(f"{URL}/msgbatch_{chat}/cancel"),
        client.get(f"{URL}/msgbatch_{chat}/results"),
        client.delete(f"{URL}/msgbatch_{chat}"),
    ):
        status, type_, message = refusal(answer)
        assert (status, type_) == (404, "not_found_error")
        assert f"/v1/batches/batch_{chat}" in message


@pytest.mark.parametrize(("id_", "says"), [("msgbatch_no", "No batch found"), ("batch_no", "begins with msgbatch_")])
def test_an_unknown_id_is_not_found(client: FlaskClient, id_: str, says: str) -> None:
    status, type_, message = refusal(client.get(f"{URL}/{id_}"))
    assert (status, type_) == (404, "not_found_error") and says in message


def test_another_projects_message_batch_does_not_exist(client: FlaskClient, context: AppContext) -> None:
    id_ = create(client, a_request("a")).get_json()["id"]
    stranger = client_of(context, project="other")
    for answer in (
        stranger.get(f"{URL}/{id_}"),
        stranger.post(f"{URL}/{id_}/cancel"),
        stranger.get(f"{URL}/{id_}/results"),
        stranger.delete(f"{URL}/{id_}"),
    ):
        assert refusal(answer)[:2] == (404, "not_found_error")
    assert stranger.get(URL).get_json() == {"data": [], "first_id": None, "last_id": None, "has_more": False}
    assert refusal(stranger.get(f"{URL}?after_id={id_}"))[0] == 400


def test_pages_go_both_ways(client: FlaskClient) -> None:
    ids = [create(client, a_request("a")).get_json()["id"] for _ in range(5)][::-1]

    def page(query: str) -> tuple[list[str], bool]:
        answer = client.get(f"{URL}?{query}").get_json()
        listed = [batch["id"] for batch in answer["data"]]
        assert (answer["first_id"], answer["last_id"]) == (listed[0], listed[-1])
        return listed, answer["has_more"]

    assert page("limit=2") == (ids[:2], True)
    assert page(f"limit=2&after_id={ids[1]}") == (ids[2:4], True)
    assert page(f"limit=2&after_id={ids[3]}") == (ids[4:], False)
    assert page(f"limit=2&before_id={ids[4]}") == (ids[2:4], True), "those immediately before, still newest first"
    assert page(f"limit=3&before_id={ids[3]}") == (ids[:3], False)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("after_id=msgbatch_no", "Invalid 'after_id'"),
        ("before_id=batch_no", "Invalid 'before_id'"),
        ("before_id=msgbatch_a&after_id=msgbatch_b", "Send one of"),
    ],
)
def test_a_page_that_cannot_be_is_refused(client: FlaskClient, query: str, says: str) -> None:
    status, type_, message = refusal(client.get(f"{URL}?{query}"))
    assert (status, type_) == (400, "invalid_request_error") and says in message


def test_only_a_batch_that_has_ended_is_deleted_with_all_that_refers_to_it(
    client: FlaskClient, context: AppContext
) -> None:
    id_ = create(client, a_request("a")).get_json()["id"]
    batch_id = id_.replace("msgbatch_", "batch_")
    assert refusal(client.delete(f"{URL}/{id_}"))[:2] == (409, "conflict_error")
    set_status(context, batch_id, "completed")
    assert client.delete(f"{URL}/{id_}").get_json() == {"id": id_, "type": "message_batch_deleted"}
    assert client.get(f"{URL}/{id_}").status_code == client.get(f"/v1/batches/{batch_id}").status_code == 404
    assert client.get(URL).get_json()["data"] == []
    with context.database.read() as session:
        assert session.execute(select(Event.type, Event.data)).all() == [("batch.deleted", {"id": batch_id})]


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("in_progress", "in_progress"),
        ("finalizing", "in_progress"),
        ("cancelling", "canceling"),
        ("completed", "ended"),
        ("expired", "ended"),
        ("cancelled", "ended"),
        ("failed", "ended"),
    ],
)
def test_each_status_has_a_name_in_the_dialect(
    client: FlaskClient, context: AppContext, status: str, shown: str
) -> None:
    id_ = create(client, a_request("a")).get_json()["id"]
    set_status(context, id_.replace("msgbatch_", "batch_"), status)
    batch = client.get(f"{URL}/{id_}").get_json()
    assert batch["processing_status"] == shown
    assert (batch["ended_at"], batch["results_url"]) == (
        ("2027-01-15T08:00:00Z", f"http://localhost{URL}/{id_}/results") if shown == "ended" else (None, None)
    )
    assert batch["request_counts"]["processing"] == (0 if shown == "ended" else 1)


@pytest.mark.parametrize(
    ("method", "path", "status", "type_", "says"),
    [
        ("POST", "/v1/messages/unknown", 404, "not_found_error", "Unknown request URL"),
        ("PUT", URL, 405, "invalid_request_error", "allowed: GET, POST"),
    ],
)
def test_what_the_dialect_has_not_is_refused_in_its_words(
    client: FlaskClient, method: str, path: str, status: int, type_: str, says: str
) -> None:
    refused = refusal(client.open(path, method=method, json={}))
    assert refused[:2] == (status, type_) and says in refused[2]


def test_openais_routes_keep_openais_errors(client: FlaskClient) -> None:
    answer = client.get("/v1/batches/batch_no")
    assert set(answer.get_json()["error"]) == {"message", "type", "param", "code"}
    assert "request-id" not in answer.headers
