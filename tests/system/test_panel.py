"""Recipe panel on a real stack."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import requests

from tests.support.stacks import RunningStack

TASKS = 20


def test_a_panel_is_three_stages_of_as_many_requests_as_tasks_and_agents(stack: RunningStack) -> None:
    http = requests.Session()
    http.headers["Authorization"] = f"Bearer {stack.key}"
    rows = [{"custom_id": f"task-{number}", "prompt": f"Design part {number}."} for number in range(TASKS)]
    options = {
        "agents": ["DEV", {"role": "QA", "model": "failing"}, "ARCHITECT"],
        "model": "echo",
        "retries": 0,
        "notify": True,
        "checks": ["contains:Design", {"gate": "not-contains", "value": "critique", "weight": 3}],
    }
    body = {"recipe": "panel", "input": {"items": rows}, "options": options}
    response = http.post(f"{stack.url}/v1/jobs", json=body, timeout=300)
    assert response.status_code == 200, response.text
    job = stack.wait_for_job(response.json(), seconds=120)
    assert job["status"] == "completed", job
    assert job["request_counts"]["completed"] == TASKS

    def artifact(name: str) -> list[dict[str, Any]]:
        file_id = next(entry["file_id"] for entry in job["batchyard"]["artifacts"] if entry["name"] == name)
        return [json.loads(line) for line in stack.client.files.content(file_id).content.splitlines()]

    tasks, dialogue, told = (artifact(name) for name in ("panel.jsonl", "dialogue.jsonl", "events.jsonl"))
    assert [task["task_id"] for task in tasks] == [row["custom_id"] for row in rows]
    failures = sum(len(task["failed_agents"]) for task in tasks)
    assert failures > 0  # a third of the second agent's proposals
    stages = {stage["name"]: stage["issued"] for stage in job["batchyard"]["stages"]}
    assert (stages["propose"], stages["critique-1"]) == (3 * TASKS, 3 * TASKS - failures)
    assert all(ranked["proposal"]["content"] for task in tasks for ranked in task["results"])
    assert Counter(message["stage"] for message in dialogue) == stages

    completed = [event for event in told if event["type"] == "agent.response.completed"]
    failed = [event for event in told if event["type"] == "agent.response.failed"]
    assert (len(completed), len(failed)) == (3 * TASKS - failures, failures)
    assert {event["role"] for event in failed} == {"QA"}
    deliberations = [event for event in told if event["type"] == "deliberation.completed"]
    assert all(event["duration_ms"] > 0 for event in deliberations)
    assert len(deliberations) == TASKS
    assert job["batchyard"]["metrics"]["failed_agents"] == failures

    events = http.get(f"{stack.url}/v1/jobs/{job['id']}/events?limit=100", timeout=30).json()["data"]
    notified = [event["data"] for event in events if event["type"] == "deliberation.completed"]
    assert sorted(data["task_id"] for data in notified) == sorted(row["custom_id"] for row in rows)
    assert {data["id"] for data in notified} == {job["id"]}
    lines = http.get(f"{stack.url}/v1/jobs/{job['id']}/item_events", timeout=30).content.splitlines()
    assert Counter(json.loads(line)["type"] for line in lines) == Counter(event["type"] for event in told)
