"""/v1/jobs on a running stack: a job to its end, what is read of it, and the batches that are its stages."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from batchyard.statuses import TERMINAL
from tests.contract.conftest import refusal
from tests.support.rows import until
from tests.support.stacks import RunningStack

ITEMS = [{"custom_id": f"id-{number}", "prompt": f"Why {number}?", "more": [number]} for number in range(5)]


def create(http: httpx.Client, *, items: Any = ITEMS, recipe: str = "debate", **options: Any) -> dict[str, Any]:
    body = {"recipe": recipe, "options": options, "input": {"items": items}, "metadata": {"team": "a"}}
    answer = http.post("/v1/jobs", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def look(http: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    return dict(http.get(f"/v1/jobs/{job['id']}").json())


def wait(http: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    """Return the job when it has ended."""
    until(lambda: look(http, job)["status"] in TERMINAL, 120)
    return look(http, job)


@pytest.fixture(scope="module")
def done(http: httpx.Client) -> dict[str, Any]:
    """A completed job of five items, which argue twice and are judged once."""
    job = wait(http, create(http, model="echo", n=2, judge={"model": "other"}))
    assert job["status"] == "completed", job
    return job


def test_an_ended_job_counts_its_items_and_adds_up_its_batches(http: httpx.Client, done: dict[str, Any]) -> None:
    counts = {"total": 5, "completed": 5, "failed": 0, "stuck": 0, "expired": 0, "cancelled": 0}
    assert done["request_counts"] == counts
    assert (done["errors"], done["metadata"]) == (None, {"team": "a"})
    assert done["created_at"] <= done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"]
    ours = done["batchyard"]
    names = ("name", "issued", "answered", "expected")
    assert [[stage[name] for name in names] for stage in ours["stages"]] == [["argue", 10, 10, 10], ["judge", 5, 5, 5]]
    assert (ours["simulated"], set(ours["models"]), ours["sla"]) == (True, {"echo", "other"}, "on_track")
    batches = [http.get(f"/v1/batches/{stage['batch_id']}").json() for stage in ours["stages"]]
    assert [batch["status"] for batch in batches] == ["completed", "completed"]
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert done["usage"][name] == sum(batch["usage"][name] for batch in batches) > 0


def test_its_results_stand_in_the_order_of_the_input_in_a_file(
    http: httpx.Client, stack: RunningStack, done: dict[str, Any]
) -> None:
    files = {artifact["name"]: artifact for artifact in done["batchyard"]["artifacts"]}
    content = stack.client.files.content(files["results.jsonl"]["file_id"]).content
    assert [json.loads(line)["custom_id"] for line in content.splitlines()] == [item["custom_id"] for item in ITEMS]
    assert {"manifest.json", "config.json", "metrics.json"} <= files.keys()


def test_ended_items_are_read_as_lines_and_a_reader_goes_on_anywhere(http: httpx.Client, done: dict[str, Any]) -> None:
    path = f"/v1/jobs/{done['id']}/results"
    everything = http.get(path)
    assert everything.headers["content-type"].startswith("application/jsonl")
    lines = everything.text.splitlines()
    rows = [json.loads(line) for line in lines]
    assert sorted(row["number"] for row in rows) == list(range(1, 6))
    assert rows[0]["result"] == {"text": f"Why {rows[0]['number'] - 1}?", "votes": 2}
    for after in range(6):
        assert http.get(path, params={"after": after}).text.splitlines() == lines[after:]
    assert refusal(http.get(path, params={"after": 6}))["param"] == "after"


def test_items_are_listed_by_number_state_and_id(http: httpx.Client, done: dict[str, Any]) -> None:
    path = f"/v1/jobs/{done['id']}/items"
    first = http.get(path, params={"limit": 3}).json()
    assert first["has_more"]
    rest = http.get(path, params={"after": first["last_id"]}).json()
    assert [item["number"] for item in first["data"] + rest["data"]] == list(range(1, 6))
    item = {"number": 3, "custom_id": "id-2", "state": "completed", "life": 1, "turn": 2, "stage": None, "reason": None}
    item |= {"question": "Why 2?", "answer": "Why 2?", "scores": []}
    assert http.get(path, params={"custom_id": "id-2"}).json()["data"] == [item]
    assert http.get(path, params={"state": "failed"}).json()["data"] == []


def test_an_item_shows_its_row_its_turns_and_its_result(http: httpx.Client, done: dict[str, Any]) -> None:
    item = http.get(f"/v1/jobs/{done['id']}/items/4").json()
    assert item["columns"] == ITEMS[3]
    assert item["result"] == {"text": "Why 3?", "votes": 2}
    argue, judge = item["turns"]
    assert [request["custom_id"] for request in argue["requests"]] == ["id-3/argue.1.0", "id-3/argue.1.1"]
    seeds = [request["body"]["seed"] for request in argue["requests"]]
    assert len(set(seeds)) == 2
    (verdict,) = judge["requests"]
    assert verdict["body"]["messages"][-1] == {"role": "user", "content": "Why 3?"}
    assert verdict["response"]["choices"][0]["message"]["content"] == "0"
    assert (verdict["status_code"], verdict["error"], verdict["retry"]) == (200, None, 0)
    stages = [stage["batch_id"] for stage in done["batchyard"]["stages"]]
    assert [argue["requests"][0]["batch_id"], verdict["batch_id"]] == stages
    for number in ("0", "6", "-1", "x"):
        assert http.get(f"/v1/jobs/{done['id']}/items/{number}").status_code == 404


def test_the_end_of_a_job_is_an_event_and_those_of_its_batches_are_none(
    http: httpx.Client, done: dict[str, Any]
) -> None:
    created, event = http.get(f"/v1/jobs/{done['id']}/events").json()["data"]
    assert created["type"] == "job.created"
    assert (event["type"], event["data"]["id"]) == ("job.completed", done["id"])
    for stage in done["batchyard"]["stages"]:
        assert http.get(f"/v1/batches/{stage['batch_id']}/events").json()["data"] == []


@pytest.mark.parametrize("action", ["cancel", "retry"])
def test_the_batch_of_a_stage_is_left_to_its_job(http: httpx.Client, done: dict[str, Any], action: str) -> None:
    batch_id = done["batchyard"]["stages"][0]["batch_id"]
    ours = http.get(f"/v1/batches/{batch_id}").json()["batchyard"]
    assert (ours["job_id"], ours["stage"]) == (done["id"], "argue")
    answer = http.post(f"/v1/batches/{batch_id}/{action}")
    assert answer.status_code == 409
    assert done["id"] in refusal(answer)["message"]


def test_the_sdk_lists_and_reads_the_batches_of_a_stage(stack: RunningStack, done: dict[str, Any]) -> None:
    batch = stack.client.batches.retrieve(done["batchyard"]["stages"][1]["batch_id"])
    assert batch.output_file_id is not None
    lines = stack.client.files.content(batch.output_file_id).text.splitlines()
    assert sorted(json.loads(line)["custom_id"] for line in lines) == [f"id-{number}/judge.1.0" for number in range(5)]


def test_a_job_that_is_cancelled_keeps_what_has_ended(http: httpx.Client) -> None:
    job = create(http, model="late")
    until(lambda: [stage["issued"] for stage in look(http, job)["batchyard"]["stages"]] == [15], 60)
    live = http.get(f"/v1/jobs/{job['id']}/items", params={"state": "live"}).json()["data"]
    assert live and live[0]["stage"] == "argue"
    (stage,) = look(http, job)["batchyard"]["stages"]
    assert (stage["name"], stage["issued"], stage["expected"]) == ("argue", 15, 15)
    assert http.post(f"/v1/jobs/{job['id']}/cancel").json()["status"] in ("cancelling", "cancelled")
    ended = wait(http, job)
    assert (ended["status"], ended["request_counts"]["cancelled"]) == ("cancelled", 5)
    states = {item["state"] for item in http.get(f"/v1/jobs/{job['id']}/items").json()["data"]}
    assert states == {"cancelled"}
    assert http.post(f"/v1/jobs/{job['id']}/cancel").status_code == 200


def test_every_bad_row_is_named_before_anything_runs(http: httpx.Client) -> None:
    items = [ITEMS[0], {"custom_id": "no prompt"}, ITEMS[0], {"prompt": 5}]
    job = wait(http, create(http, items=items, model="echo"))
    assert job["status"] == "failed"
    errors = [(error["line"], error["code"]) for error in job["errors"]["data"]]
    assert errors == [(2, "missing_prompt"), (3, "duplicate_custom_id"), (4, "invalid_messages")]
    assert job["batchyard"]["stages"] == []


def test_an_artifact_of_a_job_is_the_input_of_another(http: httpx.Client, done: dict[str, Any]) -> None:
    artifact = {"job_id": done["id"], "name": "results.jsonl"}
    body = {
        "recipe": "debate",
        "options": {"model": "echo", "n": 2, "template": "Is {custom_id} right?"},
        "input": {"artifact": artifact},
    }
    job = wait(http, http.post("/v1/jobs", json=body).json())
    assert (job["status"], job["request_counts"]["completed"]) == ("completed", 5)
    assert http.get(f"/v1/jobs/{job['id']}/items/2").json()["result"]["text"] == "Is id-1 right?"


def test_an_artifact_of_anothers_job_is_unknown(
    http: httpx.Client, other_project: openai.OpenAI, done: dict[str, Any]
) -> None:
    body = {
        "recipe": "debate",
        "options": {"model": "echo"},
        "input": {"artifact": {"job_id": done["id"], "name": "results.jsonl"}},
    }
    headers = {"Authorization": f"Bearer {other_project.api_key}"}
    assert refusal(http.post("/v1/jobs", json=body, headers=headers))["param"] == "input.artifact"
