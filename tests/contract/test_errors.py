"""Errors and keys, as contract.md promises them."""

from __future__ import annotations

import http.client as http_client
import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest

from batchyard import __version__
from tests.contract.conftest import refusal
from tests.support.rows import until
from tests.support.stacks import RunningStack


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/nope", 404),
        ("GET", "/v1/files/a/b/c", 404),
        ("PUT", "/v1/files", 405),
        ("DELETE", "/v1/batches", 405),
        ("GET", "/start", 405),
        ("POST", "/v1/usage", 405),
    ],
)
def test_unknown_routes_and_methods_answer_json_too(http: httpx.Client, method: str, path: str, status: int) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status
    refusal(answer)


@pytest.mark.parametrize("key", [None, "-", "wrong", "by-", "by-0123456789abcdef-" + "0" * 64])
@pytest.mark.parametrize(
    "path", ["/v1/files", "/v1/files/file-x", "/v1/batches", "/v1/batches/batch_x", "/v1/models", "/v1/keys"]
)
def test_without_a_valid_key_nothing_is_answered(http: httpx.Client, key: str | None, path: str) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = httpx.get(f"{http.base_url}{path}", headers=headers, timeout=60)
    assert (answer.status_code, refusal(answer)["code"]) == (401, "invalid_api_key")


def test_an_upload_without_a_key_is_refused_before_it_is_read(http: httpx.Client) -> None:
    form: Any = {"files": {"file": b"x" * 1_000_000}, "data": {"purpose": "batch"}}
    answer = httpx.post(f"{http.base_url}/v1/files", **form, timeout=60)
    assert (answer.status_code, refusal(answer)["code"]) == (401, "invalid_api_key")


def test_a_json_body_that_is_too_large_is_a_413(http: httpx.Client) -> None:
    answer = http.post("/v1/batches", content=b'{"a": "' + b"x" * 2_000_000 + b'"}')
    assert answer.status_code == 413
    refusal(answer)


def test_a_connection_goes_on_after_a_body_that_was_refused(http: httpx.Client) -> None:
    connection = http_client.HTTPConnection(http.base_url.host, http.base_url.port, timeout=60)
    connection.connect()
    connection.auto_open = 0  # reconnecting would hide that the server closed it
    for _ in range(10):
        connection.request("POST", "/v1/files", body=b"x" * 4_000_000, headers={"Content-Type": "text/plain"})
        refused = connection.getresponse()
        assert (refused.status, json.loads(refused.read())["error"]["code"]) == (401, "invalid_api_key")
        connection.request("GET", "/healthz")
        assert json.loads(connection.getresponse().read()) == {"status": "ok", "version": __version__}
    connection.close()


def test_every_answer_has_a_request_id_of_its_own(http: httpx.Client) -> None:
    ids = {http.get(path).headers["x-request-id"] for path in ("/v1/models", "/nope", "/healthz", "/openapi.json")}
    assert len(ids) == 4


def test_health_and_readiness_need_no_key(http: httpx.Client) -> None:
    assert httpx.get(f"{http.base_url}/healthz", timeout=60).json() == {"status": "ok", "version": __version__}

    answers: list[httpx.Response] = []

    def ready() -> bool:
        answers.append(httpx.get(f"{http.base_url}/readyz", timeout=60))
        return answers[-1].status_code == 200

    until(ready)  # a worker has a second to answer
    parts = answers[-1].json()["parts"]
    assert {"database", "artifacts", "broker", "worker", "ray"} <= set(parts) and set(parts.values()) == {"ok"}


def test_the_text_of_a_client_s_exception_names_the_code(stack: RunningStack) -> None:
    client, claude = stack.client, anthropic.Anthropic(base_url=stack.url, api_key=stack.key, max_retries=0)
    chat: Any = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    calls: list[tuple[str, Callable[[], object]]] = [
        ("invalid_value", lambda: client.batches.create(input_file_id="x", endpoint="/v1/x", completion_window="24h")),
        ("model_not_found", lambda: client.chat.completions.create(model="nobody", **chat)),
        ("model_not_found", lambda: claude.messages.create(model="nobody", **chat)),
        (
            "context_length_exceeded",
            lambda: client.chat.completions.create(model="nano", **chat | {"max_tokens": 9999}),
        ),
    ]
    for code, call in calls:
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as refused:
            call()
        assert f"({code})" in str(refused.value)


def test_a_query_parameter_that_is_given_twice_is_refused(http: httpx.Client) -> None:
    answer = http.get("/v1/batches?limit=5&limit=6")
    assert (answer.status_code, refusal(answer)["param"]) == (400, "limit")
