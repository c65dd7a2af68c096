"""Administrators change the served models over HTTP; what is refused changes nothing."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from store import keys
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in
from tests.webapp.pages.conftest import csrf_of, signed_in
from webapp import create_app

NESTED: Any = functools.reduce(lambda inner, _: [inner], range(800), [])
ECHO = {"id": "later", "entry": {"engine": "echo", "engine_args": {"slots": 4}}}


@pytest.fixture
def served(tmp_path: Path, database_url: str) -> AppContext:
    return context_in(tmp_path, database_url=database_url)


@pytest.fixture
def admin(served: AppContext) -> FlaskClient:
    return client_of(served, admin=True)


def names(client: FlaskClient) -> list[str]:
    return [model["id"] for model in client.get("/v1/models").get_json()["data"]]


def test_a_model_is_added_changed_and_removed(served: AppContext, admin: FlaskClient) -> None:
    added = admin.post("/v1/models", json=ECHO)
    assert added.status_code == 200, added.get_json()
    assert names(admin) == ["echo", "later"]
    changed = admin.patch("/v1/models/later", json={"entry": {"engine_args": {"slots": 5}}}).get_json()
    assert changed["batchyard"]["config_sha256"] != added.get_json()["batchyard"]["config_sha256"]
    assert admin.delete("/v1/models/later").get_json() == {"id": "later", "object": "model", "deleted": True}
    assert names(admin) == ["echo"]
    assert served.fresh(at_once=True).draining["later"].engine_args == {"slots": 5}
    assert admin.get("/v1/models/later").status_code == 404
    assert admin.post("/v1/models", json=ECHO).status_code == 200
    types = [entry["type"] for entry in admin.get("/v1/audit").get_json()["data"]]
    assert types.count("model.added") == 2 and {"model.changed", "model.removed"} <= set(types)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("post", "", {"id": "echo", "entry": {"engine": "echo"}}, 409, "models set"),
        ("post", "", {"id": "m", "entry": {"engine": "ecko"}}, 400, "models.m.engine: must be"),
        ("post", "", {"id": "m", "entry": {"engine": "echo", "replica": 2}}, 400, "did you mean replicas"),
        ("post", "", {"id": "m", "entry": {"engine": "echo", "replicas": 0}}, 400, "models.m.replicas"),
        ("post", "", {"id": "m", "entry": {"engine": "echo", "engine_args": {"latency_ms": -1}}}, 400, "latency_ms"),
        ("post", "", {"id": "", "entry": {"engine": "echo"}}, 400, "name"),
        ("post", "", {"id": "m~0123abcd", "entry": {"engine": "echo"}}, 400, "choose another name"),
        ("post", "", {"id": "x/../y", "entry": {"engine": "echo"}}, 400, "choose another"),
        ("post", "", {"id": "x//y", "entry": {"engine": "echo"}}, 400, "choose another"),
        ("post", "", {"id": "x/", "entry": {"engine": "echo"}}, 400, "choose another"),
        ("post", "", {"id": "m", "entry": {"engine": "echo", "engine_args": {"slots": NESTED}}}, 400, "levels deep"),
        ("post", "", {"id": "..", "entry": {"engine": "echo"}}, 400, "choose another"),
        ("post", "", {"id": "m", "entry": {"engine": "echo", "replicas": 10**9}}, 400, "at most 1000"),
        ("post", "", {"id": "m", "entry": {"engine": "echo", "num_gpus": 1e308}}, 400, "at most 1000"),
        ("patch", "/other", {"entry": {"replicas": 2}}, 404, "does not exist"),
        ("delete", "/other", None, 404, "does not exist"),
        ("delete", "/echo", None, 400, "no models"),
        ("patch", "/echo", {"entry": {"engine_args": {"call_log": "/etc/passwd"}}}, 403, "engine_args.call_log"),
        (
            "post",
            "",
            {"id": "m", "entry": {"engine": "server", "command": "sh -c id {port}"}},
            403,
            "engine_args.command",
        ),
        ("post", "", {"id": "m", "entry": {"engine": "vllm", "source": "/etc"}}, 403, "models.m.source"),
        ("post", "", {"id": "m", "entry": {"engine": "vllm", "source": 3}}, 403, "models.m.source"),
        (
            *("post", "", {"id": "m", "entry": {"engine": "vllm", "source": "a/b", "engine_args": {"model": "/etc"}}}),
            *(400, "loads the model that `source` names"),
        ),
        ("post", "", {"id": "m", "entry": {"engine": "echo", "engine_args": "x"}}, 400, "engine_args"),
        (
            "post",
            "",
            {
                "id": "m",
                "entry": {
                    "engine": "openai",
                    "engine_args": {"endpoints": [{"url": "http://evil.example/v1", "api_key_env": "DATABASE_URL"}]},
                },
            },
            403,
            "engine_args.endpoints",
        ),
    ],
)
def test_what_is_refused_changes_nothing(
    served: AppContext, admin: FlaskClient, method: str, path: str, body: Any, status: int, said: str
) -> None:
    answer = getattr(admin, method)(f"/v1/models{path}", json=body)
    message = answer.get_json()["error"]["message"]
    assert (answer.status_code, said in message) == (status, True), message
    assert str(served.settings.models) not in message or said == "no models"
    assert names(admin) == ["echo"]


def test_a_change_keeps_what_it_does_not_name(served: AppContext, admin: FlaskClient) -> None:
    assert admin.patch("/v1/models/echo", json={"entry": {"live": {"mode": "off"}}}).status_code == 200
    assert admin.patch("/v1/models/echo", json={"entry": {"live": {"ttft_ms": 5}}}).status_code == 200
    live = served.fresh(at_once=True).models["echo"].live
    assert (live.mode, live.ttft_ms) == ("off", 5)
    assert admin.post("/v1/models/reload").get_json()["not_used"] == ["echo"]


def test_a_changed_or_removed_model_is_reset_to_its_entry_in_models_toml(
    served: AppContext, admin: FlaskClient
) -> None:
    before = served.models["echo"]
    assert admin.post("/v1/models", json=ECHO).status_code == 200
    assert admin.patch("/v1/models/echo", json={"entry": {"max_segments": 7}}).status_code == 200
    assert admin.patch("/v1/models/echo", json={"entry": None}).status_code == 200
    assert served.fresh(at_once=True).models["echo"] == before
    assert admin.post("/v1/models/reload").get_json()["not_used"] == []
    assert admin.delete("/v1/models/echo").status_code == 200
    assert names(admin) == ["later"]
    assert admin.patch("/v1/models/echo", json={"entry": None}).status_code == 200
    assert names(admin) == ["echo", "later"]
    unknown = admin.patch("/v1/models/later", json={"entry": None})
    assert (unknown.status_code, "models.toml has no model 'later'" in unknown.text) == (404, True)
    assert admin.post("/v1/models", json={"id": "x", "entry": None}).status_code == 400


def test_only_administrators_change_models(served: AppContext) -> None:
    client = client_of(served)
    assert client.post("/v1/models", json=ECHO).status_code == 403
    assert client.patch("/v1/models/echo", json={"entry": {}}).status_code == 403
    assert client.delete("/v1/models/echo").status_code == 403
    assert client.post("/v1/models/reload").status_code == 403


def test_a_reload_that_cannot_be_used_leaves_the_models_as_they_are(served: AppContext, admin: FlaskClient) -> None:
    served.settings.models.write_text('[models.echo]\nengine = "none"\n')
    answer = admin.post("/v1/models/reload")
    assert answer.status_code == 400 and "models.echo.engine" in answer.get_json()["error"]["message"]
    assert names(admin) == ["echo"]
    served.settings.models.write_text("")
    emptied = admin.post("/v1/models/reload")
    assert emptied.status_code == 400 and "no models" in emptied.get_json()["error"]["message"]
    assert names(admin) == ["echo"]
    served.settings.models.write_text('[models.other]\nengine = "echo"\n')
    reloaded = admin.post("/v1/models/reload").get_json()
    assert (reloaded["added"], reloaded["removed"], names(admin)) == (["other"], ["echo"], ["other"])


def test_the_page_adds_changes_and_removes_a_model(served: AppContext) -> None:
    with served.database.write() as session:
        key = keys.create(session, "staff", admin=True).key
    page = signed_in(create_app(served).test_client(), key)
    csrf = csrf_of(page)
    added = page.post(
        "/models", data={"csrf": csrf, "id": "later", "engine": "echo", "source": "", "entry": "max_segments = 3"}
    )
    assert (added.status_code, served.fresh(at_once=True).models["later"].max_segments) == (303, 3)
    assert page.post("/models", data={"csrf": csrf, "id": "later", "entry": "replicas = 0"}).status_code == 400
    assert "not valid TOML" in page.post("/models", data={"csrf": csrf, "id": "later", "entry": "replicas"}).text
    assert page.post("/models", data={"csrf": csrf, "id": "later", "remove": "1"}).status_code == 303
    assert "later" not in served.fresh(at_once=True).models


@pytest.mark.parametrize(
    "entry",
    [
        {"source": "evil/model"},
        {"engine_args": {"revision": "refs/pr/1"}},
        {"adapters": {"more": {"source": "evil/adapter"}}},
    ],
)
def test_a_model_that_loads_code_of_its_repository_gets_no_other_repository(
    tmp_path: Path, database_url: str, entry: dict[str, Any]
) -> None:
    context = context_in(tmp_path, database_url=database_url)
    file = context.settings.models
    trusting = '[models.m]\nengine = "vllm"\nsource = "good/model"\nengine_args.trust_remote_code = true\n'
    file.write_text(file.read_text() + trusting)
    admin = client_of(context, admin=True)
    assert admin.post("/v1/models/reload").get_json()["added"] == ["m"]
    refused = admin.patch("/v1/models/m", json={"entry": entry})
    assert (refused.status_code, "cannot be set over HTTP" in refused.text) == (403, True), refused.text
    assert admin.patch("/v1/models/m", json={"entry": {"engine_args": {"max_model_len": 64}}}).status_code == 200


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (f"a = {'[' * 5000}{']' * 5000}", "not valid TOML"),
        (f"replicas = {'1' * 5000}", "not valid TOML"),
        ("engine_args.revision = 2020-01-01", "JSON"),
        ("engine_args.gpu_memory_utilization = nan", "JSON"),
    ],
)
def test_the_page_refuses_keys_that_no_entry_can_have(served: AppContext, entry: str, said: str) -> None:
    with served.database.write() as session:
        key = keys.create(session, "staff", admin=True).key
    page = signed_in(create_app(served).test_client(), key)
    fields = {"csrf": csrf_of(page), "id": "m", "engine": "vllm", "source": "some/model", "entry": entry}
    refused = page.post("/models", data=fields)
    assert (refused.status_code, said in refused.text) == (400, True)
    assert "some/model" in refused.text  # what was written is still in the form
