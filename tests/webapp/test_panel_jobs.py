"""Recipe panel over /v1/jobs without a worker: what it says of itself, and what of its options is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from jobs import messages, validation
from jobs.items import stream
from tasks.context import AppContext
from tests.support.webapps import client_of, context_in


@pytest.fixture
def context(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    monkeypatch.setattr(messages, "validate", lambda *_: None)
    return context_in(tmp_path, redis_url=broker)


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


def post(client: FlaskClient, query: str = "", **options: Any) -> dict[str, Any]:
    body = {"recipe": "panel", "input": {"prompts": ["Why?", "How?"]}, "options": {"model": "echo", **options}}
    answer: dict[str, Any] = client.post(f"/v1/jobs{query}", json=body).get_json()
    return answer


def test_panel_is_listed_with_its_stages_and_what_judges(client: FlaskClient) -> None:
    listed = client.get("/v1/recipes").get_json()
    panel = {recipe["name"]: recipe for recipe in listed["data"]}["panel"]
    assert panel["stages"] == ["propose", "critique-1", "revise-1"]
    assert panel["judgement"] == ["checks", "extract"]
    assert panel["main"] == "panel.jsonl"
    assert {"name": "not-contains"} in listed["gates"]


def test_the_requests_of_each_stage_are_known_before_anything_runs(client: FlaskClient) -> None:
    dry = post(client, "?dry_run=true", rounds=2, judge={"model": "echo", "allow_author": True, "structured": False})
    assert [(stage["name"], stage["expected"]) for stage in dry["stages"]] == [
        ("propose", 6),
        ("critique-1", 6),
        ("revise-1", 6),
        ("critique-2", 6),
        ("revise-2", 6),
        ("judge", None),
    ]


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"checks": ["containz:x"]}, "options.checks.0.gate", "Did you mean 'contains'?"),
        ({"checks": ["contains"]}, "options.checks.0.gate", "Gate 'contains' needs a text, not None."),
        ({"checks": ["is-json", "regex:("]}, "options.checks.1.gate", "is no regular expression of RE2: missing ): (."),
        ({"checks": [{"gate": "is-json", "weight": 0}]}, "options.checks", "more than 0"),
        ({"agents": ["DEV", "ARCHITEKT"]}, "options.agents.1", "Did you mean 'ARCHITECT'?"),
        ({"judge": {"model": "eco", "allow_author": True}}, "options.judge.model", "Did you mean 'echo'?"),
        ({"judge": {"model": "echo"}}, "options.judge.model", "is the model of an agent"),
        ({"rounds": 6}, "options.rounds", "at most 5"),
        ({"round": 1}, "options.round", "Did you mean 'options.rounds'?"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    client: FlaskClient, options: dict[str, Any], param: str, says: str
) -> None:
    error = post(client, **options)["error"]
    assert error["param"].startswith(param)
    assert says in error["message"]


def test_what_agents_are_told_may_have_any_names(client: FlaskClient) -> None:
    schema = {"type": "object", "properties": {"model": {"enum": ["T"], "title": "a model"}}}
    checks = [{"gate": "is-json", "value": schema}]
    job = post(client, metadata={"model": "T-1000", "gate": "north"}, checks=checks)
    assert job["object"] == "job", job
    assert job["batchyard"]["options"]["metadata"] == {"model": "T-1000", "gate": "north"}


def test_events_of_each_task_are_for_jobs_of_up_to_1000(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stream.MOST_NOTIFIED == 1000
    monkeypatch.setattr(stream, "MOST_NOTIFIED", 1)
    jobs = [post(client, notify=notify) for notify in (True, False)]
    for job in jobs:
        assert validation.run(context, job["id"], "here/1/task")
    told, silent = (client.get(f"/v1/jobs/{job['id']}").get_json() for job in jobs)
    assert (told["status"], silent["status"]) == ("failed", "in_progress")
    (error,) = told["errors"]["data"]
    assert error["code"] == "too_many_items"
    assert error["message"] == "Option 'notify' is for 1 items at most, and the job has 2; leave it out."
