"""NUL, which PostgreSQL's texts cannot hold: wherever a client sends it, the answer is the same on every database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from store import batches
from tests.support.webapps import client_of, context_in, upload
from webapp.document import document


@pytest.fixture
def client(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    return client_of(context_in(tmp_path, database_url=database_url), admin=True)


def nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def operations(client: FlaskClient) -> list[tuple[str, str, dict[str, Any]]]:
    with client.application.app_context():
        paths = document()["paths"]
    return [(method.upper(), path, entry) for path, own in paths.items() for method, entry in own.items()]


def test_an_id_with_nul_is_as_unknown_as_any_other(client: FlaskClient) -> None:
    for method, path, _ in operations(client):
        if "{" in path:
            name = path[path.index("{") : path.index("}") + 1]
            with_nul, without = (client.open(path.replace(name, id), method=method, json={}) for id in ("a%00b", "ab"))
            assert with_nul.status_code == without.status_code < 500, (method, path)


def test_a_query_with_nul_is_refused_with_the_parameters_name(client: FlaskClient) -> None:
    for method, path, entry in operations(client):
        for parameter in entry.get("parameters", []):
            if parameter["in"] == "query" and "{" not in path:
                answer = client.open(f"{path}?{parameter['name']}=a%00b", method=method)
                error = answer.get_json()["error"]
                # Anthropic's errors name a parameter in their message only.
                place = error["param"] if "param" in error else error["message"].split("'")[1]
                assert (answer.status_code, place) == (400, parameter["name"]), (method, path)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/batches", {"metadata": {"team": "a\0"}}, "metadata.team"),
        ("/v1/batches", {"metadata": {"te\0am": "a"}}, "metadata"),
        ("/v1/batches", {"input_file_id": "file-\0"}, "input_file_id"),
        ("/v1/batches", {"post_process": [{"step": "score"}, {"step": "\0"}]}, "post_process.1.step"),
        ("/v1/keys", {"project": "a\0"}, "project"),
        ("/v1/schedules", {"input": {"template": "\0"}}, "input.template"),
        ("/v1/webhook_endpoints", {"name": "\0"}, "name"),
        ("/v1/batches", {"metadata": nested(190, "\0")}, None),
        ("/start", {"prompts": ["a", "b\0"]}, "prompts.1"),
        ("/v1/jobs", {"options": {"system": "\0"}}, "options.system"),
        ("/v1/jobs", {"input": {"items": [{"a": "\0"}]}}, "input.items.0.a"),
    ],
)
def test_a_body_with_nul_is_refused_with_the_parameters_name(
    client: FlaskClient, path: str, body: dict[str, Any], param: str | None
) -> None:
    answer = client.post(path, json=body)
    error = answer.get_json()["error"]
    assert answer.status_code == 400
    assert param is None or error["param"] == param
    assert "NUL" in error["message"]


def test_nul_in_a_form_or_a_files_name_does_no_harm(client: FlaskClient) -> None:
    assert upload(client, b"x", purpose="batch\0").status_code == 400
    assert client.post("/start", data={"model": "a\0", "prompts": "a"}).status_code == 400


def test_texts_of_an_input_keep_their_place_in_a_batchs_errors(client: FlaskClient) -> None:
    """Errors, a project's name or a reason may quote what a client has written into a file."""
    context = client.application.extensions["context"]
    file_id = upload(client, json.dumps({"custom_id": "a\0"}).encode()).get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = client.post("/v1/batches", json=body).get_json()["id"]
    with context.database.write() as session:
        batches.reject(session, batch_id, [{"code": "x", "line": 1, "message": "the id 'a\0'", "param": "a\0"}])
    assert client.get(f"/v1/batches/{batch_id}").get_json()["errors"]["data"][0]["message"] == "the id 'a\0'"
    with context.database.write() as session:
        record = batches.get(session, session.get_one(batches.Batch, batch_id).project_id, batch_id)
        record.holder = "reason\0"
    assert client.get(f"/v1/batches/{batch_id}").status_code == 200
