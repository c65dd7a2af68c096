"""What all requests have in common: an id, and bodies of a bounded size."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tasks.context import AppContext
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
