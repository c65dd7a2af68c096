"""Every endpoint on one stack: a batch of it is answered, and pages, downloads and steps show what it holds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from batchyard.endpoints import responses
from batchyard.endpoints.base import Endpoint
from batchyard.endpoints.catalog import CHAT, CLASSIFY, EMBEDDINGS, ENDPOINTS, RERANK, SCORE
from tests.support.stacks import RunningStack

PARQUET = {"post_process": [{"step": "parquet"}]}


@pytest.fixture(scope="module")
def browser(faulty: RunningStack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=faulty.url, timeout=60) as client:
        assert client.post("/sign-in", data={"key": faulty.key}).status_code == 303
        yield client


def lines(entry: Endpoint, *urls: str) -> list[dict[str, Any]]:
    body = {"model": "every", **entry.example}
    return [{"custom_id": f"r{number}", "method": "POST", "url": url, "body": body} for number, url in enumerate(urls)]


@pytest.fixture(scope="module")
def batches(faulty: RunningStack) -> dict[str, Any]:
    """A batch of each endpoint, by its path: they run at the same time."""
    return {
        path: faulty.submit(lines(entry, path, *entry.aliases), endpoint=[path, *entry.aliases][-1], extra_body=PARQUET)
        for path, entry in ENDPOINTS.items()
    }


@pytest.mark.parametrize("entry", [pytest.param(entry, id=path) for path, entry in ENDPOINTS.items()])
def test_a_batch_of_each_endpoint_is_answered_under_all_of_its_names(
    faulty: RunningStack, browser: httpx.Client, batches: dict[str, Any], entry: Endpoint
) -> None:
    urls = (entry.path, *entry.aliases)
    batch = faulty.wait(batches[entry.path])
    assert (batch.status, batch.endpoint) == ("completed", entry.path), batch.errors
    assert batch.request_counts.completed == len(urls)
    answers = faulty.lines(batch.output_file_id)
    assert [answer["response"]["status_code"] for answer in answers] == [200] * len(urls)
    (record, *_) = pq.read_table(io.BytesIO(faulty.artifact(batch, "results.parquet"))).to_pylist()
    shown = {"text": record["text"], "vectors": record["embeddings"], "labels": record["labels"]}
    shown |= {"scores": record["scores"], "tokens": record["tokens"]}
    assert shown[entry.result], (entry.path, record)
    assert record["error_code"] is None
    page = browser.get(f"/batches/{batch.id}/requests/1")
    assert page.status_code == 200, page.text
    (row, *_) = csv.DictReader(io.StringIO(browser.get(f"/batches/{batch.id}/results.csv").text))
    assert (row["custom_id"], row["status_code"]) == ("r0", "200")


def test_a_conversation_is_one_input_of_embeddings(faulty: RunningStack) -> None:
    (line,) = lines(EMBEDDINGS, EMBEDDINGS.path)
    line["body"] = {"model": "every", "messages": CHAT.example["messages"]}
    batch = faulty.wait(faulty.submit([line], endpoint=EMBEDDINGS.path))
    assert batch.status == "completed", batch.errors
    (answer,) = faulty.lines(batch.output_file_id)
    assert len(responses.vectors(answer["response"]["body"])) == 1


def test_a_file_has_rows_of_a_model_and_of_its_adapter_which_is_listed_with_its_base(faulty: RunningStack) -> None:
    listed = {model.id: model.to_dict() for model in faulty.client.models.list() if model.id.startswith("every")}
    assert {name: model["parent"] for name, model in listed.items()} == {"every": None, "every-other": "every"}
    assert faulty.client.models.retrieve("every-other").to_dict()["parent"] == "every"
    requests = lines(CHAT, CHAT.path, CHAT.path)
    requests[1]["body"] = requests[1]["body"] | {"model": "every-other"}
    batch = faulty.wait(faulty.submit(requests))
    answers = faulty.lines(batch.output_file_id)
    assert [answer["response"]["body"]["model"] for answer in answers] == ["every", "every-other"]
    assert json.loads(faulty.artifact(batch, "manifest.json"))["models"].keys() == {"every"}


def test_a_batch_of_one_endpoint_refuses_lines_of_another(faulty: RunningStack) -> None:
    batch = faulty.wait(faulty.submit(lines(SCORE, SCORE.path, RERANK.path), endpoint=SCORE.path))
    assert batch.status == "failed"
    assert [(error.code, error.line) for error in batch.errors.data] == [("invalid_url", 2)]


@pytest.mark.parametrize(
    ("entry", "change", "param"),
    [
        (SCORE, {"documents": None}, "body"),
        (RERANK, {"documents": []}, "body.documents"),
        (CLASSIFY, {"input": []}, "body.input"),
        (EMBEDDINGS, {"dimensions": 0}, "body.dimensions"),
        (CHAT, {"messages": []}, "body.messages"),
        (ENDPOINTS["/v1/messages"], {"max_tokens": None}, "body.max_tokens"),
        (ENDPOINTS["/v1/responses"], {"previous_response_id": "resp_1"}, "body.previous_response_id"),
        (ENDPOINTS["/v1/systemone"], {"questions": {}}, "body.questions"),
    ],
)
def test_a_body_is_refused_with_its_place_before_anything_runs(
    faulty: RunningStack, entry: Endpoint, change: dict[str, Any], param: str
) -> None:
    (line,) = lines(entry, entry.path)
    line["body"] = line["body"] | change
    batch = faulty.wait(faulty.submit([line], endpoint=entry.path))
    assert [(error.code, error.param, error.line) for error in batch.errors.data] == [("invalid_request", param, 1)]
