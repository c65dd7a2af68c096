"""What all requests have in common: an id, and bodies of a bounded size."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from flask.testing import FlaskClient
from pydantic import BaseModel, ConfigDict
from werkzeug.datastructures import MultiDict

from batchyard.errors import RequestError
from tasks.context import AppContext
from tests.support.webapps import client_of, requested
from webapp import requests


def stored(context: AppContext) -> list[Path]:
    return [path for path in (context.settings.data / "artifacts").rglob("*") if path.is_file()]


def test_prompts_sent_as_json_are_bounded_and_a_file_is_the_remedy(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_BULK_BYTES", 500)
    prompts = {"model": "echo", "prompts": ["x" * 600]}
    for answer in (
        client.post("/start", json=prompts),
        client.post(
            "/start",
            input_stream=io.BytesIO(json.dumps(prompts).encode()),  # of unknown length
            content_type="application/json",
            environ_overrides={"wsgi.input_terminated": True},
        ),
    ):
        assert answer.status_code == 413
        assert "send its prompts as a file" in answer.get_json()["error"]["message"]
    assert stored(context) == []


def test_every_answer_has_a_request_id(client: FlaskClient) -> None:
    ids = {client.get(path).headers["x-request-id"] for path in ("/healthz", "/v1/models", "/nope")}
    assert len(ids) == 3


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/batches?state=completed", "Unknown parameter: 'state'. Did you mean 'status'?"),
        ("/v1/batches?status=bogus", "Supported values: "),
        ("/v1/batches?colour=red", "Unknown parameter: 'colour'. Available: after, limit, status."),
        ("/v1/jobs?state=failed", "Did you mean 'status'?"),
        ("/v1/files?purpos=batch", "Did you mean 'purpose'?"),
        ("/v1/schedules?state=failed", "Available: after, limit."),
        ("/v1/webhook_endpoints?enabled=1", "Available: after, limit."),
        ("/v1/usage?mont=2026-11", "Did you mean 'month'?"),
        ("/v1/audit?kind=x", "Available: after, limit."),
        ("/v1/keys?projet=x", "Did you mean 'project'?"),
    ],
)
def test_a_filter_that_a_list_does_not_have_is_refused_and_not_left_out(
    context: AppContext, path: str, message: str
) -> None:
    answer = client_of(context, admin=True).get(path)
    assert (answer.status_code, message in answer.get_json()["error"]["message"]) == (400, True), answer.text


def test_a_misspelt_dry_run_creates_nothing(client: FlaskClient) -> None:
    job = {"recipe": "batch", "input": {"prompts": ["one"]}, "options": {"model": "echo"}}
    assert client.post("/v1/jobs?dryrun=true", json=job).status_code == 400
    assert client.post("/start?dry-run=true", json={"model": "echo", "prompts": ["one"]}).status_code == 400
    assert client.get("/v1/batches").get_json()["data"] == client.get("/v1/jobs").get_json()["data"] == []


class Inner(BaseModel):
    n: int = 1


class Sample(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    endpoint: Literal["chat", "embeddings"] = "chat"
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("values", "code", "param", "says"),
    [
        ({}, "missing_required_parameter", "name", "Missing required parameter: 'name'."),
        ({"name": "a", "endpont": "chat"}, "unknown_parameter", "endpont", "Did you mean 'endpoint'?"),
        ({"name": "a", "endpoint": "x"}, "invalid_value", "endpoint", "Supported values: 'chat', 'embeddings'."),
        ({"name": "a", "inner": {"n": "many"}}, None, "inner.n", "Invalid value for 'inner.n'"),
        ({"name": "a", "inner": {"n": ["x\0"]}}, "invalid_value", "inner.n.0", "has a NUL character"),
        ({"name": "a", "inner": {"x\0": 1}}, "invalid_value", "inner", "has a NUL character"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_path_and_a_remedy(
    values: dict[str, Any], code: str | None, param: str, says: str
) -> None:
    with pytest.raises(RequestError) as refused:
        requests.validated(Sample, values)
    assert refused.value.param == param and says in refused.value.message
    assert code is None or refused.value.code == code


def test_an_unknown_parameter_of_any_length_makes_a_short_message() -> None:
    with pytest.raises(RequestError) as refused:
        requests.validated(Sample, {"name": "a", "x" * 10_000: 1})
    assert len(refused.value.message) < 400 and len(refused.value.param or "") < 400


def test_a_form_has_nested_fields_in_brackets_and_no_name_twice(client: FlaskClient) -> None:
    with requested(client, method="POST", data={"name": "a", "inner[n]": "5"}):
        assert requests.form(Sample).inner.n == 5
    twice = MultiDict([("name", "a"), ("name", "b")])
    with requested(client, method="POST", data=twice), pytest.raises(RequestError, match="given twice"):
        requests.form(Sample)
    with requested(client, "/?name=a&name=b"), pytest.raises(RequestError, match="given twice"):
        requests.query(Sample)


@pytest.mark.parametrize(("raw", "says"), [(b"{", "not valid JSON"), (b"[]", "must be a JSON object"), (b"", "JSON")])
def test_a_body_that_is_no_json_object_is_refused(client: FlaskClient, raw: bytes, says: str) -> None:
    with requested(client, method="POST", data=raw):
        with pytest.raises(RequestError, match=says) as refused:
            requests.parse_body(Sample)
        assert refused.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("header", "says"),
    [("", "You didn't provide an API key"), ("Basic x", "didn't provide"), ("Bearer sk-no", "Incorrect API key")],
)
def test_a_request_without_a_good_key_is_told_what_is_wrong(client: FlaskClient, header: str, says: str) -> None:
    answer = client.application.test_client().get("/v1/files", headers={"Authorization": header} if header else {})
    assert answer.status_code == 401 and says in answer.get_json()["error"]["message"]


def test_only_an_admin_key_does_what_is_for_administrators(client: FlaskClient) -> None:
    answer = client.get("/v1/projects")
    assert (answer.status_code, "needs an admin key" in answer.get_json()["error"]["message"]) == (403, True)
