"""Fixtures of Anthropic's dialect: an app with a model that answers Messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from batchyard.models import ModelSpec
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in, upload

URL = "/v1/messages/batches"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    endpoints = ["/v1/messages", "/v1/chat/completions"]
    models = {"echo": ModelSpec(name="echo", engine="echo", endpoints=endpoints)}
    return replace(context_in(tmp_path, max_requests=100, max_line_bytes=1000, max_file_bytes=50_000), models=models)


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


def a_request(custom_id: str, text: str = "hello", **params: Any) -> dict[str, Any]:
    """A request of a message batch. A parameter that is None is left out."""
    body = {"model": "echo", "max_tokens": 8, "messages": [{"role": "user", "content": text}]} | params
    return {"custom_id": custom_id, "params": {name: value for name, value in body.items() if value is not None}}


def create(client: FlaskClient, *requests: Any, **body: Any) -> Any:
    return client.post(URL, json={"requests": list(requests), **body})


def of_openai(client: FlaskClient, endpoint: str = "/v1/messages") -> str:
    """The id of a batch that was made as OpenAI's clients make one, without its first word."""
    body = {"input_file_id": upload(client, b"{}").get_json()["id"], "endpoint": endpoint, "completion_window": "24h"}
    return str(client.post("/v1/batches", json=body).get_json()["id"]).removeprefix("batch_")


def refusal(answer: Any) -> tuple[int, str, str]:
    """Status, type and message of a refusal, after checking that it is Anthropic's error object."""
    body = answer.get_json()
    assert body == {"type": "error", "error": body["error"], "request_id": answer.headers["request-id"]}
    assert set(body["error"]) == {"type", "message"}
    return answer.status_code, body["error"]["type"], body["error"]["message"]
