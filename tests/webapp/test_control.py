"""Control by HTTP and by page, without a stack: refusals, what a deadline may be, and who did what."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import update

from store import artifacts, segments
from store.records import Batch
from tasks.context import AppContext
from tests.support.planned import answers, append, plan_batch, started
from tests.support.webapps import client_of, context_in, project_of, upload


@pytest.fixture
def batch_id(client: FlaskClient) -> str:
    return str(create(client)["id"])


def create(client: FlaskClient, **options: str) -> dict[str, Any]:
    file_id = upload(client, b"{}").get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h", **options}
    return dict(client.post("/v1/batches", json=body).get_json())


def test_a_window_counts_from_the_creation_and_one_that_has_ended_is_refused_with_the_moments(
    client: FlaskClient, context: AppContext, batch_id: str
) -> None:
    with context.database.write() as session:
        session.execute(update(Batch).values(created_at=1_700_000_000))
    error = client.post(f"/v1/batches/{batch_id}", json={"completion_window": "1h"}).get_json()["error"]
    assert (error["param"], error["code"]) == ("completion_window", "invalid_value")
    assert "2023-11-14 22:13:20 UTC: one of 1h has ended at 2023-11-14 23:13:20 UTC, and now it is" in error["message"]
    with context.database.write() as session:
        session.execute(update(Batch).values(created_at=int(time.time()) - 600))
    assert client.post(f"/v1/batches/{batch_id}", json={"completion_window": "1h"}).status_code == 200


def test_a_new_batch_has_the_priority_that_it_names(client: FlaskClient) -> None:
    assert create(client)["batchyard"]["priority"] == "normal"
    assert create(client, priority="low")["batchyard"]["priority"] == "low"
    started = client.post("/start", json={"model": "echo", "prompts": ["Hi"], "priority": "high"}).get_json()
    assert client.get(f"/v1/batches/{started['batch_id']}").get_json()["batchyard"]["priority"] == "high"


def test_an_unknown_field_and_another_projects_batch_are_refused(
    client: FlaskClient, context: AppContext, batch_id: str
) -> None:
    stranger = client_of(context, project="other")
    assert client.post(f"/v1/batches/{batch_id}", json={"status": "completed"}).status_code == 400
    for path in ("", "/pause", "/resume"):
        assert stranger.post(f"/v1/batches/{batch_id}{path}", json={}).status_code == 404


def test_a_batch_that_waits_for_a_part_of_the_deployment_is_held_and_says_for_which(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = plan_batch(context, project_of(context), ["one"])
    segment = started(context.database, batch)

    def shown() -> tuple[str, str | None]:
        ours = client.get(f"/v1/batches/{batch.id}").get_json()["batchyard"]
        assert ours["state"]["reason"] == (ours["held"] and ours["held"]["reason"])
        return ours["state"]["name"], ours["state"]["reason"]

    assert shown() == ("waiting", None)
    with context.database.write() as session:
        segments.hold_up(session, segment, f"artifact store {context.artifacts.url} cannot be written: timed out")
    assert shown() == ("held", "artifact store cannot be written: timed out")
    append(context, segment, answers([1]))
    assert shown() == ("running", None)
    monkeypatch.setattr(artifacts, "_LEAST_FREE_BYTES", 2**70)
    assert shown() == ("held", "The disk of the artifact store is full; free some space.")


def test_only_what_has_ended_is_deleted_and_the_audit_says_who_did_it(
    client: FlaskClient, context: AppContext, batch_id: str
) -> None:
    refused = client.delete(f"/v1/batches/{batch_id}")
    error = refused.get_json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (409, "batch_not_ended", "batch_id")
    assert "cancel it first" in error["message"]
    with context.database.write() as session:
        session.execute(update(Batch).values(status="cancelled", cancelled_at=1))
    assert client_of(context, project="other").delete(f"/v1/batches/{batch_id}").status_code == 404
    file_id = client.get(f"/v1/batches/{batch_id}").get_json()["input_file_id"]
    answer = client.delete(f"/v1/batches/{batch_id}").get_json()
    assert answer == {"id": batch_id, "object": "batch", "deleted": True}
    assert client.get(f"/v1/batches/{batch_id}").status_code == client.get(f"/v1/files/{file_id}").status_code == 404
    (event,) = client.get("/v1/audit").get_json()["data"]
    assert (event["type"], event["data"]) == ("batch.deleted", {"id": batch_id})


def test_a_tiers_deadline_stays_whatever_the_window_becomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    context = context_in(tmp_path, tiers="fast=1h")
    client, admin = client_of(context), client_of(context, admin=True, project="operators")
    project = next(entry for entry in admin.get("/v1/projects").get_json()["data"] if entry["name"] == "default")
    assert admin.post(f"/v1/projects/{project['id']}", json={"tier": "fast"}).status_code == 200
    batch = create(client)
    changed = client.post(f"/v1/batches/{batch['id']}", json={"completion_window": "48h"}).get_json()
    assert changed["expires_at"] == batch["created_at"] + 48 * 3600
    assert changed["batchyard"]["due_at"] == batch["created_at"] + 3600


def test_who_did_what_is_listed_without_secrets_and_for_an_admin_of_all_projects(context: AppContext) -> None:
    client, admin = client_of(context), client_of(context, admin=True, project="operators")
    made = admin.post("/v1/keys", json={"project": "default", "label": "ada"}).get_json()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {made['key']}"
    batch = create(client)
    client.post(f"/v1/batches/{batch['id']}/pause")
    body = {"url": "https://example.com/hook?token=hidden", "name": "w", "event_types": ["batch.failed"]}
    webhook = client.post("/v1/webhook_endpoints", json=body).get_json()
    client.post(f"/v1/webhook_endpoints/{webhook['id']}", json={"url": "https://example.com/hook?token=hidden2"})
    client.delete(f"/v1/files/{batch['input_file_id']}")
    own = client.get("/v1/audit").get_json()["data"]
    assert [(event["type"], event["by"]["name"]) for event in own] == [
        ("file.deleted", "ada"),
        ("webhook.changed", "ada"),
        ("webhook.created", "ada"),
        ("batch.paused", "ada"),
        ("batch.created", "ada"),
    ]
    admin.delete(f"/v1/keys/{made['id']}")
    everything = admin.get("/v1/audit")
    types = [event["type"] for event in everything.get_json()["data"]]
    assert types == ["key.revoked", *(event["type"] for event in own), "key.created"]
    for secret in ("hidden", made["key"], webhook["signing_secret"]):
        assert secret not in everything.text
