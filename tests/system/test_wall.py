"""Batches, live requests, schedules, pages and housekeeping run where the packages of jobs and recipes are not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import httpx
import pytest

from tests.support.rows import until
from tests.support.stacks import ROOT, RunningStack, a_chat

MODELS = '[models.echo]\nengine = "echo"\n'
ENDPOINT = "/v1/chat/completions"
PAGES = ("/", "/begin", "/new", "/files", "/models", "/schedules", "/webhooks", "/usage", "/keys", "/audit")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A stack in whose processes no module of `jobs` or `recipes` can be imported."""
    folder = tmp_path_factory.mktemp("wall")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules |= dict.fromkeys(('jobs', 'recipes'))\n")
    path = os.pathsep.join((str(folder), str(ROOT)))
    stack = RunningStack.start(MODELS, BATCHYARD_ALLOW_SIMULATED="1", PYTHONPATH=path)
    yield stack
    stack.kill()


def test_a_batch_with_a_step_is_answered(stack: RunningStack) -> None:
    requests = [a_chat(f"r{number}", f"say {number}", metadata={"expected": "7"}) for number in range(50)]
    batch = stack.submit(requests, extra_body={"post_process": [{"step": "score"}]})
    ended = stack.wait(batch)
    assert (ended.status, ended.request_counts.completed) == ("completed", 50)
    assert len(stack.lines(ended.output_file_id)) == 50
    assert b'"total":50' in stack.artifact(ended, "score-summary.json").replace(b" ", b"")


def test_a_live_request_is_answered(stack: RunningStack) -> None:
    answer = stack.client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "hello"}])
    assert answer.choices[0].message.content


def test_a_schedule_of_batches_runs_and_one_of_jobs_is_refused(stack: RunningStack) -> None:
    times = {"name": "nightly", "cron": "0 3 * * *", "timezone": "UTC"}
    of_batches = {
        "input": {"template": json.dumps(a_chat("a", "{{date}}"))},
        "batch": {"endpoint": ENDPOINT, "completion_window": "24h"},
    }
    of_jobs = {
        "input": {"template": '{"prompt": "hello"}'},
        "job": {"recipe": "rollout", "options": {}, "completion_window": "24h"},
    }
    with httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=30) as client:
        schedule = client.post("/v1/schedules", json=times | of_batches).json()
        run = client.post(f"/v1/schedules/{schedule['id']}/run").json()
        assert stack.wait(stack.client.batches.retrieve(run["batch_id"])).status == "completed"
        refused = client.post("/v1/schedules", json=times | of_jobs)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "job.recipe")
        assert refused.json()["error"]["message"].startswith("This deployment runs no jobs.")


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_open(stack: RunningStack, page: str) -> None:
    with httpx.Client(base_url=stack.url, timeout=30) as client:
        client.post("/sign-in", data={"key": stack.key})
        assert client.get(page).status_code == 200


def test_housekeeping_goes_on_and_nothing_about_jobs_is_served(stack: RunningStack) -> None:
    headers = {"Authorization": f"Bearer {stack.key}"}
    (stack.data / "metrics.json").unlink(missing_ok=True)
    until((stack.data / "metrics.json").exists)
    assert "job" not in (stack.data / "logs/housekeeper.log").read_text().partition("[tasks]")[2].partition("{")[0]
    assert httpx.get(f"{stack.url}/v1/jobs", headers=headers, timeout=30).status_code == 404
    assert "batchyard_batches" in httpx.get(f"{stack.url}/metrics", headers=headers, timeout=30).text
