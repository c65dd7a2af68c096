"""A schedule that makes jobs: what it is made of, its runs, and what they do while an earlier job runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tasks import idle
from tasks.context import AppContext
from tasks.recurring import schedules as recurring
from tests.support.messages import SentMessages
from tests.support.webapps import client_of, context_in, on_sqlite, upload

pytestmark = pytest.mark.usefixtures("sent")

MINUTE = 60
SCHEDULE: dict[str, Any] = {
    "name": "nightly",
    "cron": "* * * * *",
    "input": {"template": json.dumps({"prompt": "What happened on {{date}}?"})},
    "job": {"recipe": "debate", "options": {"model": "echo"}, "metadata": {"day": "{{date}}"}, "seed": 7},
}


@pytest.fixture
def context(database_url: str, broker: str, tmp_path: Path, recipes: Path) -> AppContext:
    return context_in(tmp_path, database_url=database_url, redis_url=broker, recipes=str(recipes))


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


def create(client: FlaskClient, **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/schedules", json=SCHEDULE | changes)
    assert answer.status_code == 200, answer.text
    return dict(answer.get_json())


def refused(client: FlaskClient, path: str = "", **changes: Any) -> str:
    """Return the param with which a schedule with these changes, or a change of one, is refused."""
    answer = client.post(f"/v1/schedules{path}", json=changes if path else SCHEDULE | changes)
    assert answer.status_code == 400, answer.text
    return str(answer.get_json()["error"]["param"])


def run(context: AppContext, client: FlaskClient, schedule: dict[str, Any], times: int = 1) -> list[dict[str, Any]]:
    """Run the next times of a schedule. Return all of its runs, oldest first."""
    for _ in range(times):
        due = client.get(f"/v1/schedules/{schedule['id']}").get_json()["next_run_at"]
        recurring.run_due(context, due)
    return list(reversed(client.get(f"/v1/schedules/{schedule['id']}/runs").get_json()["data"]))


def test_a_run_makes_a_job_of_its_time(client: FlaskClient, context: AppContext, sent: SentMessages) -> None:
    schedule = create(client)
    assert (schedule["batch"], schedule["job"]["recipe"]) == (None, "debate")
    (first,) = run(context, client, schedule)
    assert (first["state"], first["batch_id"], first["reason"]) == ("created", None, None)
    job = client.get(f"/v1/jobs/{first['job_id']}").get_json()
    assert sent.ids("validate_job") == [job["id"]]
    assert (job["recipe"], job["batchyard"]["seed"], job["batchyard"]["schedule_id"]) == ("debate", 7, schedule["id"])
    (row,) = client.get(f"/v1/files/{job['input_file_id']}/content").data.splitlines()
    assert json.loads(row) == {"prompt": f"What happened on {job['metadata']['day']}?"}
    assert client.post(f"/v1/schedules/{schedule['id']}/run").get_json()["reason"].startswith(f"Job '{job['id']}'")


@pytest.mark.parametrize(("overlap", "states"), [("skip", "cs"), ("allow", "cc"), ("cancel_previous", "cc")])
def test_a_run_heeds_the_job_of_the_run_before(
    client: FlaskClient, context: AppContext, overlap: str, states: str
) -> None:
    runs = run(context, client, create(client, overlap=overlap), times=2)
    assert "".join(entry["state"][0] for entry in runs) == states
    first = client.get(f"/v1/jobs/{runs[0]['job_id']}").get_json()
    assert first["status"] == ("cancelling" if overlap == "cancel_previous" else "validating")


def test_a_schedule_reads_what_jobs_read(client: FlaskClient, context: AppContext) -> None:
    table = upload(client, b"prompt\nWhy?\n", name="in.csv", purpose="user_data").get_json()["id"]
    schedule = create(client, input={"file_id": table})
    client.delete(f"/v1/files/{table}")
    (first,) = run(context, client, schedule)
    job = client.get(f"/v1/jobs/{first['job_id']}").get_json()
    assert (job["status"], job["batchyard"]["input_sha256"]) == ("validating", schedule["input"]["sha256"])
    unknown = upload(client, b"x", name="in.pdf", purpose="user_data").get_json()["id"]
    assert refused(client, input={"file_id": unknown}) == "input.file_id"
    assert refused(client, input={"artifact": {"job_id": first["job_id"], "name": "x"}}) == "input.artifact"


@on_sqlite
@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"job": None}, "batch"),
        ({"batch": {"endpoint": "/v1/chat/completions", "completion_window": "24h"}}, "batch"),
        ({"job": None, "batch": {"endpoint": "/v1/embeddings", "completion_window": "24h"}}, "endpoint"),
        ({"job": {"recipe": "debates"}}, "job.recipe"),
        ({"job": {"recipe": "debate", "options": {"model": "echi"}}}, "job.options.model"),
        (
            {"job": {"recipe": "debate", "options": {"model": "echo"}, "completion_window": "1s"}},
            "job.completion_window",
        ),
        ({"job": {"recipe": "debate", "input_file_id": "file-1"}}, "job.input_file_id"),
        ({"input": {"template": "5"}}, "input.template"),
        ({"input": {"template": "\n"}}, "input.template"),
    ],
)
def test_what_could_not_become_a_job_is_refused(client: FlaskClient, changes: dict[str, Any], param: str) -> None:
    assert refused(client, **changes) == param


def test_a_schedule_keeps_to_what_it_makes(client: FlaskClient, context: AppContext) -> None:
    path = f"/{create(client)['id']}"
    assert refused(client, path, batch={"endpoint": "/v1/chat/completions", "completion_window": "24h"}) == "batch"
    assert refused(client, path, job={"recipe": "debate"}) == "job.options.model"
    changed = client.post(f"/v1/schedules{path}", json={"job": {"recipe": "steps"}, "name": "other"}).get_json()
    assert (changed["job"]["recipe"], changed["name"]) == ("steps", "other")


def test_a_recipe_that_is_gone_fails_the_run_with_the_reason(
    client: FlaskClient, context: AppContext, database_url: str, broker: str, tmp_path: Path
) -> None:
    schedule = create(client)
    without = context_in(tmp_path, database_url=database_url, redis_url=broker)
    (first,) = run(without, client, schedule)
    assert (first["state"], first["job_id"]) == ("failed", None)
    assert "No recipe is named 'debate'" in first["reason"]


def test_a_new_schedule_ends_the_rest_of_an_idle_deployment_and_a_look_at_it_does_not(
    client: FlaskClient, context: AppContext
) -> None:
    idle.mark(context.redis, 60)
    assert client.get("/v1/schedules").status_code == 200
    refused(client, cron="never")
    assert idle.is_marked(context.redis)
    create(client)
    assert not idle.is_marked(context.redis)


def test_a_key_with_a_cap_has_no_schedule_run_what_its_cap_does_not_count(
    client: FlaskClient, context: AppContext
) -> None:
    made = create(client)["id"]
    staff = client_of(context, admin=True)
    capped = staff.post("/v1/keys", json={"project": "default", "max_tokens": 10}).get_json()["key"]
    headers = {"Authorization": f"Bearer {capped}"}
    for path, body in (
        ("", SCHEDULE),
        (f"/{made}", {"cron": "5 * * * *"}),
        (f"/{made}/resume", {}),
        (f"/{made}/run", {}),
    ):
        answer = client.post(f"/v1/schedules{path}", json=body, headers=headers)
        assert (answer.status_code, "has a cap" in answer.text) == (403, True), (path, answer.text)
    assert client.post(f"/v1/schedules/{made}/pause", headers=headers).status_code == 200
