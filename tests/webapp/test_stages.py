"""A batch that is a stage of a job is listed and shown like any other, and only its job decides of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from store.records import Batch
from tasks import messages
from tasks.context import AppContext
from tests.support.jobs import end_stage, running_stage
from tests.support.webapps import client_of, context_in


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(messages, "finish", lambda *_: None)
    return context_in(tmp_path)


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


@pytest.fixture
def stage(context: AppContext, client: FlaskClient) -> Batch:
    return running_stage(context)


def test_a_stage_says_whose_it_is(client: FlaskClient, stage: Batch) -> None:
    shown = client.get(f"/v1/batches/{stage.id}").get_json()
    assert (shown["batchyard"]["job_id"], shown["batchyard"]["stage"]) == (stage.job_id, "argue")
    assert shown["request_counts"] == {"total": 2, "completed": 1, "failed": 0}
    assert (shown["input_file_id"], shown["batchyard"]["input_sha256"]) == ("", None)
    assert client.get("/v1/batches").get_json()["data"] == [shown]


@pytest.mark.parametrize("action", ["cancel", "retry"])
def test_a_stage_is_neither_cancelled_nor_retried(
    context: AppContext, client: FlaskClient, stage: Batch, action: str
) -> None:
    if action == "retry":
        end_stage(context, stage)
    answer = client.post(f"/v1/batches/{stage.id}/{action}")
    assert answer.status_code == 409
    assert f"job '{stage.job_id}'; {action} the job" in answer.get_json()["error"]["message"]


def test_a_stages_answers_can_be_read_while_it_runs_and_when_it_has_ended(
    context: AppContext, client: FlaskClient, stage: Batch
) -> None:
    assert client.get(f"/v1/batches/{stage.id}/results").text.count("\n") == 1
    end_stage(context, stage)
    assert client.get(f"/v1/batches/{stage.id}/results").text.count("\n") == 2
    shown = client.get(f"/v1/batches/{stage.id}").get_json()
    content = client.get(f"/v1/files/{shown['input_file_id']}/content").text
    assert [json.loads(line)["custom_id"] for line in content.splitlines()] == ["r1", "r2", "r3"]
    assert client.get(f"/v1/batches/{stage.id}/events").get_json()["data"] == []
