"""A running batch is paused and resumed, gets another deadline and another name, and it says who did that."""

from __future__ import annotations

import time
from typing import Any

import httpx
import openai
import pytest

from tests.contract.conftest import refusal
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat


def post(http: httpx.Client, batch: Any, verb: str = "", **body: Any) -> dict[str, Any]:
    answer = http.post(f"/v1/batches/{batch.id}{verb}", json=body or None)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_paused_batch_finishes_what_is_in_flight_stands_still_lets_others_by_and_loses_nothing(
    stack: RunningStack, http: httpx.Client
) -> None:
    def is_at_rest(batch: Any) -> bool:
        found = http.get(f"/v1/batches/{batch.id}/segments").json()["data"]
        return {segment["state"] for segment in found} <= {"pending", "done"}

    def is_paused_halfway(batch: Any) -> bool:
        """Pause a batch that has answers. One that was too quick is no use."""
        if not batch.request_counts.completed or http.post(f"/v1/batches/{batch.id}/pause").status_code != 200:
            return False
        until(lambda: is_at_rest(batch))
        halfway = stack.client.batches.retrieve(batch.id).request_counts.completed < 320
        return halfway or not post(http, batch, "/resume")

    requests = [a_chat(f"id-{number}", "x", model="slow") for number in range(320)]
    batch = stack.caught(lambda: stack.submit(requests), until=is_paused_halfway)
    paused = http.get(f"/v1/batches/{batch.id}").json()
    ours = paused["batchyard"]
    assert (paused["status"], ours["eta_seconds"], ours["state"]["name"]) == ("in_progress", None, "paused")
    assert ours["paused_by"] and abs(ours["paused_at"] - time.time()) < 60

    still = stack.client.batches.retrieve(batch.id).request_counts
    other = stack.wait(stack.submit([a_chat("id", "x", model="slow")]))
    assert other.status == "completed"
    assert stack.client.batches.retrieve(batch.id).request_counts == still

    def it_alone_is_paused_and_waits_for_nothing() -> bool:
        queue = http.get("/v1/queue").json()
        waits = [model for model in queue["models"] if model["model"] == "slow" and model["waiting_requests"]]
        return (queue["paused"], waits) == (1, [])

    until(it_alone_is_paused_and_waits_for_nothing)  # cancelled ones of other tests may not have ended yet
    assert post(http, batch, "/resume")["batchyard"]["paused_at"] is None
    ended = stack.wait(batch)
    assert (ended.status, ended.request_counts.completed) == ("completed", 320)
    assert sorted(line["custom_id"] for line in stack.lines(ended.output_file_id)) == sorted(
        f"id-{number}" for number in range(320)
    )
    happened = http.get(f"/v1/batches/{batch.id}/events").json()["data"]
    did = [event["type"] for event in happened if event["by"]]
    assert did == ["batch.created", "batch.paused", "batch.resumed"]
    answer = http.post(f"/v1/batches/{batch.id}/pause")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert refusal(answer)["message"] == "Cannot pause a batch with status 'completed'."


def test_a_batch_gets_another_deadline_priority_and_name(stack: RunningStack, http: httpx.Client) -> None:
    batch = stack.submit_endless()
    changed = post(http, batch, completion_window="2h", priority="high", name="nightly", description="a try")
    assert changed["expires_at"] == changed["batchyard"]["due_at"] == batch.created_at + 7200
    assert (changed["completion_window"], changed["batchyard"]["priority"]) == ("2h", "high")
    assert (changed["batchyard"]["name"], changed["metadata"]) == (
        "nightly",
        {"name": "nightly", "description": "a try"},
    )
    happened = http.get(f"/v1/batches/{batch.id}/events").json()["data"]
    (change,) = [event["data"] for event in happened if event["type"] == "batch.changed"]
    assert (change["completion_window"], change["priority"]) == ("2h", "high")
    for body, param in (({"completion_window": "8d"}, "completion_window"), ({"priority": "now"}, "priority")):
        answer = http.post(f"/v1/batches/{batch.id}", json=body)
        assert (answer.status_code, refusal(answer)["param"]) == (400, param)
    stack.client.batches.cancel(batch.id)
    ended = stack.wait(batch)
    assert post(http, ended, name="renamed", description=None)["metadata"] == {"name": "renamed"}
    with pytest.raises(openai.ConflictError):
        stack.client.post(f"/batches/{batch.id}", cast_to=object, body={"priority": "low"})
    newest = http.get("/v1/audit").json()["data"]
    assert [event["type"] for event in newest if event["data"]["id"] == batch.id] == [
        "batch.changed",
        "batch.cancelling",
        "batch.changed",
        "batch.created",
    ]


# test_dispatch.py and test_policy.py say who makes way, and test_segments.py that a segment hears of it.
@pytest.mark.exhaustive
def test_a_batch_of_the_background_makes_way_for_another_projects_and_loses_nothing(
    stack: RunningStack, http: httpx.Client
) -> None:
    requests = [a_chat(f"id-{number}", "x", model="slow") for number in range(480)]
    spare = stack.submit(requests, extra_body={"priority": "background"})
    spare = stack.wait(spare, until=lambda batch: batch.request_counts.completed > 0)
    assert spare.batchyard["priority"] == "background"
    key = http.post("/v1/keys", json={"project": "foreground"}).json()["key"]
    theirs = RunningStack(stack.process, stack.data, stack.url, key)
    urgent = theirs.submit(requests)
    deadline = time.monotonic() + 90
    while (now := stack.client.batches.retrieve(spare.id)).batchyard["state"]["name"] != "waiting":
        assert time.monotonic() < deadline, now
        time.sleep(0.1)
    assert now.batchyard["eta_seconds"] is None, "nobody knows when something is spare"
    before = now.request_counts.completed
    assert theirs.wait(urgent).status == "completed"
    # While the last half of the other batch drains, it goes on.
    assert stack.client.batches.retrieve(spare.id).request_counts.completed - before < 300
    ended = stack.wait(spare)
    assert (ended.status, ended.request_counts.completed) == ("completed", 480)
    assert len({line["custom_id"] for line in stack.lines(ended.output_file_id)}) == 480
