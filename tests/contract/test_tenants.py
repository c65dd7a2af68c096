"""Projects and keys, as contract.md promises them: objects of other projects are invisible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.contract.conftest import refusal
from tests.support.rows import until
from tests.support.stacks import RunningStack

ROUTES = [
    ("GET", "/v1/files/{file}"),
    ("GET", "/v1/files/{file}/content"),
    ("DELETE", "/v1/files/{file}"),
    ("POST", "/v1/uploads/{upload}/parts"),
    ("POST", "/v1/uploads/{upload}/complete"),
    ("POST", "/v1/uploads/{upload}/cancel"),
    ("GET", "/v1/batches/{batch}"),
    ("GET", "/v1/batches/{batch}/results"),
    ("POST", "/v1/batches/{batch}"),
    ("DELETE", "/v1/batches/{batch}"),
    ("POST", "/v1/batches/{batch}/cancel"),
    ("POST", "/v1/batches/{batch}/requests"),
    ("POST", "/v1/batches/{batch}/close"),
    ("POST", "/v1/batches/{batch}/pause"),
    ("POST", "/v1/batches/{batch}/resume"),
    ("POST", "/v1/batches/{batch}/retry"),
    ("GET", "/v1/batches/{batch}/events"),
    ("GET", "/v1/jobs/{job}"),
    ("DELETE", "/v1/jobs/{job}"),
    ("POST", "/v1/jobs/{job}/cancel"),
    ("POST", "/v1/jobs/{job}/pause"),
    ("POST", "/v1/jobs/{job}/resume"),
    ("POST", "/v1/jobs/{job}/retry"),
    ("GET", "/v1/jobs/{job}/results"),
    ("GET", "/v1/jobs/{job}/items"),
    ("GET", "/v1/jobs/{job}/items/0"),
    ("GET", "/v1/jobs/{job}/events"),
    ("GET", "/v1/webhook_endpoints/{webhook}"),
    ("POST", "/v1/webhook_endpoints/{webhook}"),
    ("DELETE", "/v1/webhook_endpoints/{webhook}"),
    ("POST", "/v1/webhook_endpoints/{webhook}/rotate_secret"),
    ("POST", "/v1/webhook_endpoints/{webhook}/test"),
    ("GET", "/v1/webhook_endpoints/{webhook}/deliveries"),
    ("POST", "/v1/webhook_endpoints/{webhook}/deliveries/{delivery}/redeliver"),
    ("GET", "/v1/schedules/{schedule}"),
    ("POST", "/v1/schedules/{schedule}"),
    ("DELETE", "/v1/schedules/{schedule}"),
    ("POST", "/v1/schedules/{schedule}/pause"),
    ("POST", "/v1/schedules/{schedule}/resume"),
    ("POST", "/v1/schedules/{schedule}/run"),
    ("GET", "/v1/schedules/{schedule}/runs"),
    ("GET", "/v1/schedules/{schedule}/template"),
]

BODIES: dict[str, dict[str, Any]] = {"test": {"event_type": "batch.failed"}, "complete": {"part_ids": []}}
"""What a route needs, by its last word."""


@pytest.fixture
def stranger(http: httpx.Client, other_project: openai.OpenAI) -> httpx.Client:
    headers = {"Authorization": f"Bearer {other_project.api_key}"}
    return httpx.Client(base_url=http.base_url, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def webhook_ids(stack: RunningStack, http: httpx.Client) -> dict[str, str]:
    """The ids of a webhook endpoint and of a delivery to it."""
    body = {"name": "theirs", "url": "https://receiver.invalid/", "event_types": ["batch.failed"]}
    webhook = f"/v1/webhook_endpoints/{http.post('/v1/webhook_endpoints', json=body).json()['id']}"
    stack.wait(stack.submit("no json"))
    delivery = http.get(f"{webhook}/deliveries").json()["data"][0]  # other tests' batches may fail meanwhile
    http.post(webhook, json={"enabled": False})
    return {"webhook": delivery["webhook_endpoint_id"], "delivery": delivery["id"]}


@pytest.fixture(scope="module")
def schedule(http: httpx.Client, created: dict[str, Any]) -> Iterator[str]:
    """The id of a schedule."""
    batch = {name: created[name] for name in ("endpoint", "completion_window")}
    body = {"name": "theirs", "cron": "0 0 29 2 *", "input": {"file_id": created["input_file_id"]}, "batch": batch}
    schedule_id = http.post("/v1/schedules", json=body).json()["id"]
    yield schedule_id
    http.delete(f"/v1/schedules/{schedule_id}")


@pytest.fixture(scope="module")
def upload(stack: RunningStack) -> str:
    """The id of a pending upload."""
    return stack.client.uploads.create(bytes=1, filename="a", mime_type="text/plain", purpose="user_data").id


@pytest.fixture(scope="module")
def job(stack: RunningStack, http: httpx.Client) -> str:
    """The id of a job. It has ended: no batch of it comes while another test looks at the newest ones."""
    body = {"recipe": "debate", "options": {"model": "echo"}, "input": {"prompts": ["Why?"]}}
    return str(stack.wait_for_job(http.post("/v1/jobs", json=body).json())["id"])


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_not_yours_answers_exactly_as_not_there(
    stranger: httpx.Client,
    mixed: Any,
    webhook_ids: dict[str, str],
    schedule: str,
    job: str,
    upload: str,
    method: str,
    route: str,
) -> None:
    theirs = {"file": mixed.output_file_id, "batch": mixed.id, "schedule": schedule, "job": job, "upload": upload}
    theirs |= webhook_ids
    nobodys = {name: f"{value[:-6]}ffffff" for name, value in theirs.items()}
    answers = []
    for ids in (theirs, nobodys):
        body = BODIES.get(route.rpartition("/")[2], {})
        answer = stranger.request(method, route.format(**ids), json=body if method == "POST" else None)
        text = answer.text
        for value in ids.values():
            text = text.replace(value, "ID")
        answers.append((answer.status_code, text, sorted(set(answer.headers) - {"content-length"})))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


def test_anothers_file_is_unknown_as_an_input(stranger: httpx.Client, stack: RunningStack, mixed: Any) -> None:
    body = {"input_file_id": mixed.input_file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    path = f"/v1/batches/{stranger.post('/v1/batches', json=body).json()['id']}"
    until(lambda: stranger.get(path).json()["status"] == "failed")
    error = stranger.get(path).json()["errors"]["data"][0]
    assert error["message"].startswith(f"Cannot find file '{mixed.input_file_id}', or organization ")
    assert stack.client.files.retrieve(mixed.input_file_id).id == mixed.input_file_id


def test_anothers_things_are_in_no_list_and_no_cursor(stranger: httpx.Client, mixed: Any) -> None:
    assert mixed.id not in stranger.get("/v1/batches").text
    assert mixed.output_file_id not in stranger.get("/v1/files").text
    assert stranger.get("/v1/batches", params={"after": mixed.id}).status_code == 400
    assert stranger.get("/v1/files", params={"after": mixed.output_file_id}).status_code == 400


def test_an_idempotency_key_is_a_projects_own(
    stranger: httpx.Client, http: httpx.Client, created: dict[str, Any]
) -> None:
    own = stranger.post("/v1/files", files={"file": b"{}"}, data={"purpose": "batch"}).json()["id"]
    headers = {"Idempotency-Key": "shared"}
    first = http.post("/v1/batches", json=created, headers=headers).json()
    second = stranger.post("/v1/batches", json=created | {"input_file_id": own}, headers=headers)
    assert second.status_code == 200
    assert second.json()["id"] != first["id"]


def test_an_administrator_makes_lists_and_revokes_keys(http: httpx.Client) -> None:
    key = http.post("/v1/keys", json={"project": "third"}).json()
    third = {"Authorization": f"Bearer {key['key']}"}
    assert httpx.get(f"{http.base_url}/v1/files", headers=third, timeout=60).json()["data"] == []
    listed = http.get("/v1/keys", params={"project": "third"}).json()["data"]
    assert [entry["id"] for entry in listed] == [key["id"]]
    assert key["key"].rpartition("-")[2] not in http.get("/v1/keys").text
    revoked = http.delete(f"/v1/keys/{key['id']}").json()
    assert revoked["revoked_at"] is not None
    assert http.delete(f"/v1/keys/{key['id']}").json() == revoked
    answer = httpx.get(f"{http.base_url}/v1/files", headers=third, timeout=60)
    assert (answer.status_code, refusal(answer)["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/keys"), ("POST", "/v1/keys"), ("DELETE", "/v1/keys/x")])
def test_a_key_without_admin_rights_cannot_touch_keys(stranger: httpx.Client, method: str, path: str) -> None:
    answer = stranger.request(method, path, json={"project": "mine", "admin": True} if method == "POST" else None)
    assert (answer.status_code, refusal(answer)["code"]) == (403, "insufficient_permissions")


@pytest.mark.parametrize("project", ["", "x" * 129, "a\nb", "\u0000"])
def test_a_project_has_a_name_that_can_be_read(http: httpx.Client, project: str) -> None:
    answer = http.post("/v1/keys", json={"project": project})
    assert (answer.status_code, refusal(answer)["param"]) == (400, "project")
