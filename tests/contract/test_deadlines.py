"""Deadlines over HTTP: ETA and its range, SLA states and their events, tiers and limits of projects."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.contract.conftest import refusal
from tests.contract.test_endings import conserved, slow
from tests.support.stacks import RunningStack, a_chat


def ours(batch: Any) -> dict[str, Any]:
    return dict(batch.batchyard)


@pytest.fixture(scope="module")
def measured(stack: RunningStack) -> None:
    """The model `slow` was measured."""
    stack.wait(stack.submit(slow(64)))


@pytest.mark.usefixtures("measured")
def test_a_batch_that_runs_says_when_it_will_be_done_and_between_what_and_what(stack: RunningStack) -> None:
    batch = stack.submit(slow(2000))  # half a minute
    batch = stack.wait(batch, until=lambda batch: batch.request_counts.completed > 0 and ours(batch)["eta_seconds"])
    extension = ours(batch)
    assert 0 < extension["eta_earliest_seconds"] < extension["eta_seconds"] < extension["eta_latest_seconds"]
    assert (extension["sla"], extension["due_at"]) == ("on_track", batch.expires_at)
    batch = stack.wait(
        batch, until=lambda batch: ours(batch)["state"] is None or ours(batch)["state"]["name"] == "running"
    )
    assert ours(batch)["state"] is not None
    stack.client.batches.cancel(batch.id)
    batch = stack.wait(batch)
    assert (ours(batch)["eta_seconds"], ours(batch)["state"]) == (None, None)


def test_an_eta_is_unknown_where_the_model_never_answered(stack: RunningStack) -> None:
    batch = stack.submit([a_chat("id", "x", model="unmeasured")])  # no other test runs it
    batch = stack.wait(batch, until=lambda batch: batch.status == "in_progress")
    assert ours(batch)["eta_seconds"] is None
    stack.client.batches.cancel(batch.id)


@pytest.mark.usefixtures("measured")
def test_a_batch_that_cannot_be_done_in_its_window_says_so_at_once_and_is_late_in_the_end(
    stack: RunningStack, http: httpx.Client
) -> None:
    batch = stack.submit(slow(1500), completion_window="6s")
    assert ours(batch)["sla"] == "at_risk"
    assert ours(batch)["eta_seconds"] > 6
    batch = stack.wait(batch)
    assert (batch.status, ours(batch)["sla"]) == ("expired", "late")
    created, *events = http.get(f"/v1/batches/{batch.id}/events").json()["data"]
    assert created["by"]["key_id"] == ours(batch)["created_by"]
    assert [event["type"] for event in events] == ["batch.at_risk", "batch.late", "batch.expired"]
    assert events[0]["data"] == {"id": batch.id, "deadline": batch.expires_at, "done_at": events[0]["data"]["done_at"]}
    assert events[0]["data"]["done_at"] > batch.expires_at
    _, errors = conserved(stack, batch, 1500)
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert len(errors) == ours(batch)["expired"] > 0
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'expired'"):
        stack.client.batches.cancel(batch.id)


def project(http: httpx.Client, name: str) -> dict[str, Any]:
    return next(entry for entry in http.get("/v1/projects").json()["data"] if entry["name"] == name)


def test_a_tier_says_when_a_projects_batches_are_due(stack: RunningStack, http: httpx.Client) -> None:
    key = http.post("/v1/keys", json={"project": "tiered"}).json()["key"]
    settled = http.post(f"/v1/projects/{project(http, 'tiered')['id']}", json={"tier": "premium"}).json()
    assert (settled["tier"], settled["max_segments"]) == ("premium", None)
    body = {"model": "echo", "prompts": ["a"]}
    batch_id = http.post("/start", json=body, headers={"Authorization": f"Bearer {key}"}).json()["batch_id"]
    batch = http.get(f"/v1/batches/{batch_id}", headers={"Authorization": f"Bearer {key}"}).json()
    assert batch["batchyard"]["due_at"] == batch["created_at"] + 12 * 3600
    assert batch["expires_at"] == batch["created_at"] + 24 * 3600


@pytest.mark.parametrize(
    ("body", "param"),
    [({"tier": "premum"}, "tier"), ({"max_segments": -1}, "max_segments"), ({"tiers": "basic"}, "tiers")],
)
def test_what_a_project_cannot_have_is_refused_with_its_place(
    http: httpx.Client, stack: RunningStack, body: dict[str, Any], param: str
) -> None:
    answer = http.post(f"/v1/projects/{project(http, 'default')['id']}", json=body)
    assert (answer.status_code, refusal(answer)["param"]) == (400, param)


def test_only_administrators_see_projects(stack: RunningStack, http: httpx.Client) -> None:
    key = http.post("/v1/keys", json={"project": "curious"}).json()["key"]
    answer = http.get("/v1/projects", headers={"Authorization": f"Bearer {key}"})
    assert (answer.status_code, refusal(answer)["code"]) == (403, "insufficient_permissions")
    assert http.post("/v1/projects/proj_unknown", json={"tier": None}).status_code == 404
