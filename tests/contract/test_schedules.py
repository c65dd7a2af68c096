"""Schedules over HTTP and through the whole stack: each due time creates a batch that runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import openai
import pytest
from click.testing import CliRunner
from sqlalchemy import update

from batchyard.cli import schedules as commands
from store.database import Database
from store.records import Schedule
from tests.contract.conftest import refusal
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat

TEMPLATE = json.dumps(a_chat("{{date}}", "It is {{datetime}}.")) + "\n"
# A time so rare that only the test makes it due.
SELDOM = "30 6 29 2 *"


@pytest.fixture
def body() -> dict[str, Any]:
    """A valid body for creating a schedule."""
    return {
        "name": "nightly",
        "cron": SELDOM,
        "timezone": "Europe/Berlin",
        "input": {"template": TEMPLATE},
        "batch": {"endpoint": "/v1/chat/completions", "completion_window": "1h", "metadata": {"day": "{{date}}"}},
    }


@pytest.fixture
def create(http: httpx.Client, body: dict[str, Any]) -> Iterator[Callable[..., dict[str, Any]]]:
    """A function that creates a schedule. It is deleted after the test."""
    ids: list[str] = []

    def make(**changes: Any) -> dict[str, Any]:
        answer = http.post("/v1/schedules", json=body | changes)
        assert answer.status_code == 200, answer.text
        ids.append(answer.json()["id"])
        return dict(answer.json())

    yield make
    for schedule_id in ids:
        http.delete(f"/v1/schedules/{schedule_id}")


def make_due(stack: RunningStack, schedule: dict[str, Any], at: int) -> None:
    database = Database(stack.database_url)
    with database.write() as session:
        session.execute(update(Schedule).where(Schedule.id == schedule["id"]).values(next_run_at=at))
    database.close()


def runs(http: httpx.Client, schedule: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Wait for `number` runs of a schedule, and return them, oldest first."""

    def listed() -> list[dict[str, Any]]:
        return list(http.get(f"/v1/schedules/{schedule['id']}/runs").json()["data"])

    until(lambda: len(listed()) >= number, seconds=90)
    return listed()[::-1]


def test_a_schedule_says_what_it_was_given_and_when_it_runs_next(create: Callable[..., dict[str, Any]]) -> None:
    schedule = create(cron="30 6 * * *")
    assert schedule["object"] == "schedule"
    assert schedule["input"] == {
        "kind": "template",
        "file_id": None,
        "artifact": None,
        "url": None,
        "sha256": schedule["input"]["sha256"],
        "bytes": len(TEMPLATE),
    }
    assert (schedule["overlap"], schedule["catch_up"], schedule["paused"]) == ("skip", "latest", False)
    assert schedule["last_run"] is None
    assert schedule["next_runs"][0] == schedule["next_run_at"] > time.time()
    days = [later - earlier for earlier, later in zip(schedule["next_runs"], schedule["next_runs"][1:], strict=False)]
    assert len(days) == 4
    assert all(abs(seconds - 86400) in (0, 3600) for seconds in days)


def test_a_due_schedule_is_run_through_and_its_batch_names_it(
    stack: RunningStack, http: httpx.Client, create: Callable[..., dict[str, Any]]
) -> None:
    schedule = create()
    missed_yesterday = int(time.time()) - 86400
    make_due(stack, schedule, missed_yesterday)
    (run,) = runs(http, schedule, 1)
    assert (run["state"], run["scheduled_at"], run["reason"]) == ("created", missed_yesterday, None)
    batch = stack.wait(stack.client.batches.retrieve(run["batch_id"]))
    assert batch.status == "completed"
    assert batch.batchyard["schedule_id"] == schedule["id"]
    day = str(datetime.fromtimestamp(missed_yesterday, ZoneInfo(schedule["timezone"])).date())
    assert batch.metadata == {"day": day}
    (line,) = stack.lines(batch.output_file_id)
    assert line["custom_id"] == day
    after = http.get(f"/v1/schedules/{schedule['id']}").json()
    assert after["last_run"] == run
    assert after["next_run_at"] == schedule["next_run_at"]


def test_a_file_that_is_deleted_is_run_all_the_same(
    stack: RunningStack, http: httpx.Client, body: dict[str, Any], create: Callable[..., dict[str, Any]]
) -> None:
    file = stack.client.files.create(file=("in.jsonl", json.dumps(a_chat("a", "b")).encode()), purpose="batch")
    schedule = create(input={"file_id": file.id})
    stack.client.files.delete(file.id)
    run = http.post(f"/v1/schedules/{schedule['id']}/run").json()
    assert (run["state"], run["scheduled_at"]) == ("created", None)
    assert stack.wait(stack.client.batches.retrieve(run["batch_id"])).status == "completed"
    assert http.post("/v1/schedules", json=body | {"input": {"file_id": file.id}}).status_code == 400


def test_what_a_batch_has_produced_is_an_input(
    stack: RunningStack, http: httpx.Client, mixed: Any, create: Callable[..., dict[str, Any]]
) -> None:
    artifact = mixed.batchyard["artifacts"][0]
    named = {"batch_id": mixed.id, "name": artifact["name"]}
    schedule = create(input={"artifact": named})
    assert schedule["input"] == {
        "kind": "artifact",
        "file_id": artifact["file_id"],
        "artifact": named | {"job_id": None},
        "url": None,
        "sha256": artifact["sha256"],
        "bytes": artifact["bytes"],
    }


def test_a_schedule_is_paused_resumed_changed_and_deleted(
    stack: RunningStack, http: httpx.Client, create: Callable[..., dict[str, Any]]
) -> None:
    schedule = create()
    path = f"/v1/schedules/{schedule['id']}"
    paused = http.post(f"{path}/pause").json()
    assert (paused["paused"], paused["next_run_at"], paused["next_runs"]) == (True, None, [])
    changed = http.post(path, json={"name": "hourly", "cron": "0 * * * *"}).json()
    assert (changed["name"], changed["cron"], changed["next_run_at"]) == ("hourly", "0 * * * *", None)
    assert changed["batch"] == schedule["batch"]
    resumed = http.post(f"{path}/resume").json()
    assert resumed["next_run_at"] % 3600 == 0
    moved = http.post(path, json={"timezone": "Asia/Kathmandu"}).json()
    assert moved["next_run_at"] % 3600 == 900
    again = http.post(path, json={"input": {"template": TEMPLATE * 2}}).json()
    assert again["input"]["bytes"] == 2 * len(TEMPLATE)
    assert http.get(f"{path}/template").text == TEMPLATE * 2
    assert schedule["id"] in [entry["id"] for entry in http.get("/v1/schedules").json()["data"]]
    assert http.delete(path).json() == {"id": schedule["id"], "object": "schedule", "deleted": True}
    assert http.get(path).status_code == http.delete(path).status_code == 404


def test_runs_are_listed_newest_first_and_page_by_page(
    http: httpx.Client, create: Callable[..., dict[str, Any]]
) -> None:
    schedule = create(overlap="allow", input={"template": TEMPLATE}, paused=True)
    path = f"/v1/schedules/{schedule['id']}"
    ids = [http.post(f"{path}/run").json()["id"] for _ in range(3)]
    first = http.get(f"{path}/runs", params={"limit": 2}).json()
    second = http.get(f"{path}/runs", params={"limit": 2, "after": first["last_id"]}).json()
    assert [run["id"] for run in first["data"] + second["data"]] == ids[::-1]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert http.get(f"{path}/runs", params={"after": "run_nope"}).status_code == 400


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"cron": "61 * * * *"}, "cron", "minute '61'"),
        ({"cron": "0 0 6 * * *"}, "cron", "five fields"),
        ({"cron": "0 0 30 2 *"}, "cron", "Bad day-of-month"),
        ({"timezone": "Berlin"}, "timezone", "Europe/Berlin"),
        ({"timezone": "../../etc/passwd"}, "timezone", "name one of IANA's"),
        ({"name": ""}, "name", "a text, not empty"),
        ({"name": "a\nb"}, "name", "another control character"),
        ({"overlap": "queue"}, "overlap", "skip"),
        ({"catch_up": "some"}, "catch_up", "latest"),
        ({"input": {}}, "input", "name one of"),
        ({"input": {"file_id": "file-nope", "template": TEMPLATE}}, "input", "name one of"),
        ({"input": {"file_id": "file-nope"}}, "input.file_id", "No file found"),
        ({"input": {"artifact": {"batch_id": "batch_nope", "name": "x"}}}, "input.artifact", "No artifact"),
        ({"input": {"template": "{{date}}"}}, "input.template", "Line 1 of the template"),
        ({"batch": {}}, "batch.endpoint", "Missing"),
        ({"batch": {"endpoint": "/v1/chat/completions", "completion_window": "9d"}}, "completion_window", "9d"),
        ({"unknown": 1}, "unknown", "Unknown parameter"),
    ],
)
def test_a_create_that_cannot_be_meant_is_refused(
    http: httpx.Client, body: dict[str, Any], changes: dict[str, Any], param: str, words: str
) -> None:
    answer = http.post("/v1/schedules", json=body | changes)
    error = refusal(answer)
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]


def test_metadata_stays_within_its_limits_when_it_is_filled(http: httpx.Client, body: dict[str, Any]) -> None:
    body["batch"]["metadata"] = {"note": "x" * 500 + "{{datetime}}"}
    error = refusal(http.post("/v1/schedules", json=body))
    assert error["param"] == "batch.metadata.note"
    assert "512" in error["message"]


def test_batches_that_no_schedule_has_made_name_none(mixed: Any) -> None:
    assert mixed.batchyard["schedule_id"] is None


def test_another_projects_file_and_artifact_are_unknown_as_an_input(
    http: httpx.Client, other_project: openai.OpenAI, mixed: Any, body: dict[str, Any]
) -> None:
    headers = {"Authorization": f"Bearer {other_project.api_key}"}
    artifact = {"batch_id": mixed.id, "name": mixed.batchyard["artifacts"][0]["name"]}
    for named in ({"file_id": mixed.input_file_id}, {"artifact": artifact}):
        answer = http.post("/v1/schedules", json=body | {"input": named}, headers=headers)
        assert (answer.status_code, refusal(answer)["code"]) == (400, "invalid_value")


def test_the_terminal_makes_shows_runs_and_ends_a_schedule(stack: RunningStack, tmp_path: Path) -> None:
    file = tmp_path / "template.jsonl"
    file.write_text(TEMPLATE)

    def batchyard(*arguments: str) -> str:
        result = CliRunner().invoke(
            commands.schedule, arguments, env={"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
        )
        assert result.exit_code == 0, result.output
        return result.output

    output = batchyard(
        "create", "--name", "terminal", "--cron", SELDOM, "--template", str(file), "--metadata", "day={{date}}"
    )
    schedule_id, first = output.splitlines()[:2]
    assert first.startswith("next ") and first.endswith("-02-29 06:30:00Z")
    assert "terminal" in batchyard("list")
    assert "is paused" in batchyard("pause", schedule_id)
    assert "paused" in batchyard("show", schedule_id)
    assert first.removeprefix("next ") in batchyard("resume", schedule_id)
    batch_id = batchyard("run", schedule_id).strip()
    assert batch_id.startswith("batch_")
    assert batch_id in batchyard("runs", schedule_id)
    assert json.loads(batchyard("runs", schedule_id, "--json"))[0]["batch_id"] == batch_id
    assert "is deleted" in batchyard("delete", schedule_id)
    assert schedule_id not in batchyard("list", "--json")


def test_each_object_of_a_watched_folder_is_a_batch_with_its_outcome_beside_it(
    stack: RunningStack, http: httpx.Client, create: Callable[..., dict[str, Any]]
) -> None:
    url = stack.environment["BATCHYARD_INPUT_PREFIXES"].split(", ")[1]
    folder = Path(url.removeprefix("file://"))
    (folder / "good.jsonl").write_text(json.dumps(a_chat("one", "hello")) + "\n")
    (folder / "bad.jsonl").write_text("no line\n")
    schedule = create(input={"watch": f"{url}*.jsonl"})
    make_due(stack, schedule, int(time.time()))
    for run in runs(http, schedule, 2):
        stack.wait(stack.client.batches.retrieve(run["batch_id"]))
    make_due(stack, schedule, int(time.time()))
    until(lambda: [*map(bool, (file.stat().st_size for file in folder.glob("*.outcome.json")))] == [True, True], 30)
    good, bad = (json.loads((folder / f"{name}.jsonl.outcome.json").read_text()) for name in ("good", "bad"))
    assert (good["status"], good["request_counts"]["completed"]) == ("completed", 1)
    assert bad["status"] == "failed" and bad["errors"][0]["line"] == 1
