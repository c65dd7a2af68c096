"""The audit has a line for what changes something, reads answers, signs in or is refused, and holds no secret."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from batchyard.errors import ConfigurationError
from store import keys
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in, project_of, upload
from tests.webapp.access.conftest import Lines
from tests.webapp.pages.conftest import csrf_of, signed_in
from webapp import create_app
from webapp.access import audit

PROMPT = "a canary prompt 7f3a"
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
INPUT = json.dumps(
    LINE | {"body": {"model": "echo", "messages": [{"role": "user", "content": PROMPT}]}}, separators=(",", ":")
).encode()
# Routes that only read, and show neither prompts nor answers.
NO_READS = {
    *("batches.list_", "batches.list_segments", "batches.retrieve", "budgets.retrieve", "document.docs"),
    *("document.docs_file", "document.openapi", "events.audit", "events.list_", "files.list_", "files.retrieve"),
    *("keys.signing", "health.health", "health.healthz", "health.readyz", "health.version"),
    *("jobs.list_", "jobs.list_events", "jobs.retrieve"),
    *("keys.list_", "message_batches.list_", "message_batches.retrieve", "metrics.look", "metrics.need"),
    *("metrics.show", "models.list_", "models.retrieve", "pages.audit.show", "pages.files.show", "pages.keys.show"),
    *("pages.keys.show_project", "pages.models.show", "pages.new.show", "pages.new_job.show", "pages.overview.show"),
    *("pages.schedules.show", "pages.schedules.show_new"),
    *("pages.selection.show", "pages.sessions.begin_oidc", "pages.sessions.finish_oidc", "pages.sessions.show"),
    *("pages.sessions.show_projects", "pages.start.show", "pages.trying.show", "pages.usage.download"),
    *("pages.usage.show", "pages.webhooks.show", "pages.webhooks.show_one", "projects.list_", "recipes.list_"),
    *("schedules.list_", "schedules.retrieve", "schedules.runs", "static", "usage.download", "usage.show"),
    *("webhooks.deliveries", "webhooks.event_types", "webhooks.list_", "webhooks.retrieve"),
}


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    """A client of the API with a key of project `default`."""
    return client_of(context)


def test_each_route_that_only_reads_is_known_to_show_answers_or_not(client: FlaskClient) -> None:
    rules = client.application.url_map.iter_rules()
    reads = {rule.endpoint for rule in rules if "GET" in (rule.methods or ())}
    assert reads == audit.READS | NO_READS
    assert not audit.READS & NO_READS


def test_a_batch_from_its_file_to_the_refusal_of_another_project(
    client: FlaskClient, context: AppContext, audit_lines: Lines
) -> None:
    file_id = upload(client, INPUT).get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = client.post("/v1/batches", json=body).get_json()["id"]
    assert client.get(f"/v1/files/{file_id}/content").data.strip() == INPUT
    client.get(f"/v1/batches/{batch_id}")
    client.get("/v1/batches")
    client.post(f"/v1/batches/{batch_id}/cancel")
    client.delete(f"/v1/files/{file_id}")
    client.get("/v1/keys")
    other = client_of(context, project="other")
    assert other.get(f"/v1/files/{file_id}/content").status_code == 404
    wrong = client.application.test_client()
    wrong.get("/v1/batches", headers={"Authorization": "Bearer by-1-ab12"})

    lines = audit_lines()
    own = project_of(context)
    assert [(line["action"], line["object"], line["status"], line["result"]) for line in lines] == [
        ("files.create", file_id, 200, "ok"),
        ("batches.create", batch_id, 200, "ok"),
        ("files.content", file_id, 200, "ok"),
        ("batches.cancel", batch_id, 200, "ok"),
        ("files.delete", file_id, 200, "ok"),
        ("keys.list_", None, 403, "refused"),
        ("files.content", file_id, 404, "failed"),
        ("batches.list_", None, 401, "refused"),
    ]
    assert [line["project"] for line in lines] == [own] * 6 + [project_of(context, "other"), None]
    assert {line["address"] for line in lines} == {"127.0.0.1"}
    first = lines[0]
    assert set(first) == {
        *("time", "request_id", "key", "name", "project", "action", "object", "address", "status", "result")
    }
    assert first["time"].endswith("+00:00") and first["request_id"].startswith("req_")


def test_keys_prompts_and_what_is_typed_in_wrong_places_are_not_in_it(
    context: AppContext, audit_lines: Lines, tmp_path: Path
) -> None:
    client = client_of(context, admin=True)
    sent = client.environ_base["HTTP_AUTHORIZATION"].removeprefix("Bearer ")
    created = client.post("/v1/keys", json={"project": "search", "label": "nightly"}).get_json()
    client.delete(f"/v1/keys/{created['id']}")
    client.delete(f"/v1/keys/{sent}")  # a key where its id belongs
    batch = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "requests": [json.loads(INPUT)]}
    assert client.post("/v1/batches", json=batch).status_code == 200
    files = {"purpose": PROMPT, "file": (io.BytesIO(INPUT), PROMPT)}
    client.post("/v1/files", data=files, content_type="multipart/form-data")
    browser = create_app(context).test_client()
    assert browser.post("/sign-in", data={"key": "by-nonsense-0"}).status_code == 401
    signed_in(browser, sent)
    browser.get(f"/batches?q={PROMPT}")
    browser.post("/keys", data={"csrf": csrf_of(browser), "project": "ads"})
    browser.post("/selected", data={"csrf": csrf_of(browser), "action": "pause", "id": ["batch_1", "batch_2"]})

    text = (tmp_path / "audit.jsonl").read_text()
    secrets = [key.rpartition("-")[2] for key in (sent, created["key"])]
    assert not [secret for secret in [*secrets, PROMPT, "canary", csrf_of(browser)] if secret in text]
    lines = audit_lines()
    done = [(line["action"], line["object"], line["result"]) for line in lines]
    key_id = lines[0]["key"]
    assert done[:3] == [
        ("keys.create", created["id"], "ok"),
        ("keys.revoke", created["id"], "ok"),
        ("keys.revoke", f"by-{key_id}-…", "failed"),
    ]
    assert done[5:7] == [("sign_in.key", None, "refused"), ("sign_in.key", None, "ok")]
    assert [line["key"] for line in lines[5:7]] == [None, key_id]
    assert done[-1] == ("pages.selection.act", "batch_1,batch_2", "failed")
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_stdout_is_one_line_a_write(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    client = client_of(context_in(tmp_path, redis_url="redis://127.0.0.1:1/0", audit="stdout"))
    client.post("/v1/batches", json={})
    line = json.loads(capfd.readouterr().out)
    assert (line["action"], line["status"]) == ("batches.create", 400)


def test_without_the_setting_there_is_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    client = client_of(context_in(tmp_path, redis_url="redis://127.0.0.1:1/0"))
    client.post("/v1/batches", json={})
    assert (capfd.readouterr().out, list(tmp_path.glob("*.jsonl"))) == ("", [])


def test_a_file_that_cannot_be_written_is_said_at_the_start_and_later_fails_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "logs" / "audit.jsonl"
    settings: dict[str, Any] = {"redis_url": "redis://127.0.0.1:1/0", "audit": str(path)}
    context = context_in(tmp_path, **settings)
    with pytest.raises(ConfigurationError, match=r"BATCHYARD_AUDIT: .*/audit.jsonl cannot be written: No such file"):
        create_app(context)
    path.parent.mkdir()
    client = client_of(context)
    path.rename(path.with_suffix(".1"))  # as a rotation does
    assert upload(client, INPUT).status_code == 200
    assert json.loads(path.read_text())["action"] == "files.create"
    path.unlink()
    path.parent.joinpath("audit.1").unlink()
    path.parent.rmdir()
    assert upload(client, INPUT).status_code == 200
    assert "audit line lost" in caplog.text and PROMPT not in caplog.text
    assert "batchyard_audit_lost_lines_total 1.0" in client.get("/metrics").text


def test_the_key_that_was_used_is_named_by_its_label(context: AppContext, audit_lines: Lines) -> None:
    with context.database.write() as session:
        key = keys.create(session, "default", label="nightly job")
    client = create_app(context).test_client()
    client.post("/v1/batches", json={}, headers={"Authorization": f"Bearer {key.key}"})
    assert [(line["key"], line["name"], line["result"]) for line in audit_lines()] == [
        (key.id, "nightly job", "failed")
    ]
