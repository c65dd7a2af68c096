"""Administrators set what a project may spend; once it has, its new batches and jobs are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from store.accounting.months import Month
from store.records import Project
from tasks.context import AppContext
from tests.support.spending import spend
from tests.support.stacks import a_chat
from tests.support.webapps import client_of, upload


@pytest.fixture
def admin(context: AppContext) -> FlaskClient:
    return client_of(context, admin=True, project="staff")


@pytest.fixture
def project(context: AppContext, client: FlaskClient) -> str:
    """The id of the client's project."""
    with context.database.read() as session:
        return session.query(Project).filter_by(name="default").one().id


def test_an_administrator_sets_shows_and_removes_a_budget(
    context: AppContext, client: FlaskClient, admin: FlaskClient, project: str
) -> None:
    path = f"/v1/projects/{project}/budget"
    assert admin.get(path).status_code == 404
    settled = admin.post(path, json={"amount": "10.5", "currency": "EUR"}).get_json()
    assert (settled["amount"], settled["warn_at"], settled["when_exceeded"]) == ("10.50", 80, "finish")
    spend(context.database, project, 9)
    shown = admin.get(path).get_json()
    assert (shown["spent"], shown["state"], shown["month"]) == ("9.00", "warning", str(Month.of()))
    assert client.get(path).status_code == client.delete(path).status_code == 403
    assert client.post(path, json={"amount": 1, "currency": "EUR"}).status_code == 403
    assert admin.delete(path).get_json()["deleted"] is True
    assert admin.get(path).status_code == 404
    assert admin.post("/v1/projects/proj_nope/budget", json={"amount": 1, "currency": "EUR"}).status_code == 404


@pytest.mark.parametrize(
    "wrong",
    [
        *({"amount": -1}, {"amount": "0.0000001"}, {"amount": "much"}, {"amount": None}, {"currency": "euro"}),
        *({"warn_at": 0}, {"when_exceeded": "stop"}, {"ammount": 1}),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(admin: FlaskClient, project: str, wrong: dict[str, Any]) -> None:
    path = f"/v1/projects/{project}/budget"
    assert admin.post(path, json={"amount": 1, "currency": "EUR", **wrong}).status_code == 400
    assert admin.get(path).status_code == 404


def test_a_spent_budget_refuses_batches_and_jobs_of_its_project_only(
    context: AppContext, client: FlaskClient, admin: FlaskClient, project: str
) -> None:
    other = client_of(context, project="other")
    lines = (json.dumps(a_chat("a", "hello")) + "\n").encode()
    body = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    own, others = ({**body, "input_file_id": upload(one, lines).get_json()["id"]} for one in (client, other))
    assert client.post("/v1/batches", json=own).status_code == 200
    admin.post(f"/v1/projects/{project}/budget", json={"amount": 1, "currency": "EUR"})
    spend(context.database, project, 1)
    panel = {"recipe": "panel", "options": {"model": "echo"}, "input": {"prompts": ["hello"]}}
    for answer in (
        client.post("/v1/batches", json=own),
        client.post("/start", json={"model": "echo", "prompts": ["hello"]}),
        client.post("/v1/jobs", json=panel),
    ):
        assert (answer.status_code, answer.get_json()["error"]["code"]) == (403, "budget_exceeded"), answer.text
    assert other.post("/v1/batches", json=others).status_code == 200


@pytest.mark.parametrize("kind", ["batches", "jobs"])
@pytest.mark.parametrize("paused", ["by the budget", "before it"])
def test_a_key_does_not_resume_what_an_exceeded_budget_keeps_paused(
    context: AppContext, client: FlaskClient, admin: FlaskClient, project: str, kind: str, paused: str
) -> None:
    if kind == "batches":
        file = upload(client, (json.dumps(a_chat("a", "hello")) + "\n").encode()).get_json()["id"]
        body = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": file}
        created = client.post("/v1/batches", json=body)
    else:
        panel = {"recipe": "panel", "options": {"model": "echo"}, "input": {"prompts": ["hello"]}}
        created = client.post("/v1/jobs", json=panel)
    path, budget = f"/v1/{kind}/{created.get_json()['id']}", f"/v1/projects/{project}/budget"
    terms = {"currency": "EUR", "when_exceeded": "pause"}
    if paused == "before it":
        client.post(f"{path}/pause")
    spend(context.database, project, 2)
    admin.post(budget, json={"amount": "1", **terms})
    assert client.get(path).get_json()["batchyard"]["paused_at"] is not None
    answer = client.post(f"{path}/resume")
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (403, "budget_exceeded"), answer.text
    assert client.get(path).get_json()["batchyard"]["paused_at"] is not None
    own_admin = client_of(context, admin=True, project="default")
    assert own_admin.post(f"{path}/resume").status_code == 200
    client.post(f"{path}/pause")
    admin.post(budget, json={"amount": "3", **terms})
    assert client.post(f"{path}/resume").status_code == 200


def test_a_cap_of_nothing_lets_nothing_through(context: AppContext, admin: FlaskClient) -> None:
    made = admin.post("/v1/keys", json={"project": "shut", "max_tokens": 0}).get_json()
    assert (made["cap"]["max_tokens"], made["cap"]["state"]) == (0, "exceeded")
    headers = {"Authorization": f"Bearer {made['key']}"}
    body = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "requests": [a_chat("a", "hi")]}
    refused = client_of(context).post("/v1/batches", json=body, headers=headers)
    assert refused.get_json()["error"]["code"] == "budget_exceeded"
