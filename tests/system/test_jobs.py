"""Jobs on a real stack: a recipe of the deployment's own, from a file in a folder to its results."""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests

from batchyard.local import process
from tests.chaos import relay
from tests.chaos.jobs import Campaign
from tests.support.faulty import JUDGE_SECONDS
from tests.support.rows import until
from tests.support.stacks import PATIENCE, RunningStack
from tests.support.terminal import batchyard


class Jobs:
    """The jobs of a stack, over HTTP."""

    def __init__(self, stack: RunningStack, call_log: Path) -> None:
        self.stack = stack
        self.call_log = call_log
        self.http = requests.Session()
        self.http.headers["Authorization"] = f"Bearer {stack.key}"

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        return self.http.request(method, f"{self.stack.url}/v1{path}", timeout=300, **options)

    def create(self, items: list[dict[str, Any]] | pa.Table, **body: Any) -> Any:
        if isinstance(items, pa.Table):
            pq.write_table(items, buffer := io.BytesIO())
            name, content = "items.parquet", buffer.getvalue()
        else:
            name, content = "items.jsonl", "".join(json.dumps(item) + "\n" for item in items).encode()
        file = self.stack.client.files.create(file=(name, content), purpose="user_data")
        body = {"recipe": "contest", "options": {"model": "echo", "judge": "echo"}} | body
        response = self.call("POST", "/jobs", json={"input_file_id": file.id, **body})
        assert response.status_code == 200, response.text
        return response.json()

    def ended(self, job: Any, seconds: float = 90) -> Any:
        return self.stack.wait_for_job(job, seconds=seconds)

    def answered(self, job: Any, answers: int, seconds: float = 150) -> None:
        """Wait until so many requests of the job have an answer."""
        deadline = time.monotonic() + PATIENCE * seconds
        while self._answers(job) < answers:
            assert time.monotonic() < deadline, job
            time.sleep(0.05)

    def _answers(self, job: Any) -> int:
        job = self.call("GET", f"/jobs/{job['id']}").json()
        return sum(stage["answered"] + stage["failed"] for stage in job["batchyard"]["stages"])

    def artifact(self, job: Any, name: str) -> bytes:
        file_id = next(entry["file_id"] for entry in job["batchyard"]["artifacts"] if entry["name"] == name)
        return self.stack.client.files.content(file_id).content

    def results(self, job: Any) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.artifact(job, "results.jsonl").splitlines()]


@pytest.fixture(scope="module")
def jobs(faulty: RunningStack, faulty_calls: Path) -> Jobs:
    return Jobs(faulty, faulty_calls)


def rows(number: int) -> list[dict[str, Any]]:
    return [{"prompt": f"question {index}", "answer": f"question {index}"} for index in range(number)]


def test_a_recipe_in_the_folder_runs_over_its_items(jobs: Jobs) -> None:
    job = jobs.ended(jobs.create(rows(50)))
    assert job["status"] == "completed", job
    assert job["request_counts"]["completed"] == 50
    results = jobs.results(job)
    assert [result["custom_id"] for result in results] == [f"item-{number}" for number in range(1, 51)]
    assert results[7]["result"] == {"text": "question 7", "votes": 3, "scores": [1.0, 1.0, 1.0]}
    assert Counter(stage["name"] for stage in job["batchyard"]["stages"]) == {"argue": 1, "judge": 1}
    assert [stage["answered"] for stage in job["batchyard"]["stages"]] == [150, 50]


@pytest.mark.local
def test_its_pages_show_what_it_did(jobs: Jobs) -> None:
    job = jobs.ended(jobs.create(rows(3), name="paged"))
    with requests.Session() as browser:
        assert browser.post(f"{jobs.stack.url}/sign-in", data={"key": jobs.stack.key}, timeout=30).ok
        pages = [
            re.sub(r"<[^>]*>", "", browser.get(f"{jobs.stack.url}{path}", timeout=30).text)
            for path in ("/", f"/jobs/{job['id']}", f"/jobs/{job['id']}/items/3")
        ]
    overview, page, item = (" ".join(text.split()) for text in pages)
    assert "paged job" in overview
    assert "3 of 3 items (100 %)" in page and "n = 9" in page
    assert "row 3 of job paged" in item
    assert item.count("question 2") >= 6  # its row, what was asked, and each answer
    assert "Turn 1: argue" in item and "Turn 2: score" in item and "Turn 3: judge" in item


@pytest.mark.exhaustive
def test_processes_killed_at_random_change_no_byte_and_ask_only_what_was_in_flight_again(jobs: Jobs) -> None:
    kinds = ("worker", "jobs' worker", "process of rewards", "housekeeper's child", "engine")
    killed = Campaign(jobs.stack, jobs.call_log.parent, relay.program(300), seed=1, kinds=kinds)
    with contextlib.closing(killed) as campaign:
        campaign.run(kills=3, minutes=3)
    assert not campaign.wrong
    assert len(campaign.kills) == 3


def test_people_reply_to_items_by_api_and_terminal_though_the_jobs_worker_is_killed(jobs: Jobs) -> None:
    job = jobs.create([{"prompt": f"draft {number}"} for number in range(4)], recipe="gated", options={"model": "echo"})
    path = f"/jobs/{job['id']}"

    def reach(waiting: int, stuck: int) -> None:
        def reached() -> bool:
            current = jobs.call("GET", path).json()
            counts = (current["batchyard"]["waiting_for_verdict"], current["request_counts"]["stuck"])
            return counts == (waiting, stuck)

        until(reached, 60)

    def terminal(*arguments: str) -> Any:
        done = batchyard("job", *arguments, "--json", "--data", jobs.stack.data, folder=jobs.stack.data.parent)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    reach(waiting=4, stuck=0)
    early = jobs.call("POST", f"{path}/retry", json={})
    assert (early.status_code, early.json()["error"]["param"]) == (409, "job_id")
    process.kill(jobs.stack.processes("webhooks"))
    verdict = {"gate": "house", "passed": True}
    assert jobs.call("POST", f"{path}/items/1", json={"verdict": verdict}).status_code == 200
    terminal("verdict", job["id"], "2", "--gate", "house", "--failed", "--message", "Shorter.")
    terminal("verdict", job["id"], "3", "--gate", "house", "--failed", "--category", "hopeless")
    reach(waiting=2, stuck=1)
    listed = [(item["number"], item["state"], item["reason"]) for item in terminal("stuck", job["id"])]
    assert listed == [
        (2, "waiting_for_verdict", "house"),
        (4, "waiting_for_verdict", "house"),
        (3, "stuck", "hopeless"),
    ]
    terminal("requeue", job["id"], "3", "--hint", "Be brave.")
    reach(waiting=3, stuck=0)
    for number, passed in ((2, True), (3, False), (4, True)):
        body = {"verdict": verdict | {"passed": passed, "category": None if passed else "hopeless"}}
        assert jobs.call("POST", f"{path}/items/{number}", json=body).status_code == 200
    job = jobs.ended(job)
    assert (job["status"], job["request_counts"]["completed"], job["request_counts"]["stuck"]) == ("completed", 3, 1)
    assert terminal("resolve", job["id"], "3", "By hand.", "--by", "Ann")["state"] == "completed"
    until(lambda: jobs.results(jobs.call("GET", path).json())[2]["state"] == "completed", 60)
    job = jobs.call("GET", path).json()
    assert [result["result"]["text"] for result in jobs.results(job)] == ["draft 0", "Shorter.", "By hand.", "draft 3"]
    assert json.loads(jobs.artifact(job, "manifest.json"))["amendments"] == 1
    assert [stage["issued"] for stage in job["batchyard"]["stages"]] == [6]


def test_a_cancelled_job_keeps_what_its_items_have(jobs: Jobs) -> None:
    job = jobs.create(rows(2000))
    jobs.answered(job, 100)
    assert jobs.call("POST", f"/jobs/{job['id']}/cancel").json()["status"] == "cancelling"
    job = jobs.ended(job)
    counts = job["request_counts"]
    assert job["status"] == "cancelled"
    assert counts["cancelled"] > 0 and counts["completed"] + counts["cancelled"] == 2000
    assert Counter(result["state"] for result in jobs.results(job)) == {
        state: number for state, number in counts.items() if state in ("completed", "cancelled") and number
    }


@pytest.mark.local
def test_a_recipe_that_depends_on_chance_fails_with_item_and_turn(jobs: Jobs) -> None:
    job = jobs.ended(jobs.create(rows(20), recipe="dice"))
    assert job["status"] == "failed"
    (error,) = job["errors"]["data"]
    assert error["code"] == "recipe_not_deterministic"
    assert "turn 1" in error["message"]


@pytest.mark.local
def test_a_recipe_that_hangs_fails_its_item_alone_with_the_line(jobs: Jobs) -> None:
    (pid,) = (process.pid for process in jobs.stack.processes("webhooks")[:1])
    job = jobs.ended(jobs.create(rows(20), recipe="hanging"), seconds=200)
    assert job["status"] == "completed"
    assert (job["request_counts"]["completed"], job["request_counts"]["failed"]) == (19, 1)
    result = jobs.results(job)[3]
    assert (result["state"], result["error"]["code"]) == ("failed", "recipe_hangs")
    assert f"took longer than {JUDGE_SECONDS} seconds (flows.py, line " in result["error"]["message"]
    assert not psutil.pid_exists(pid)
    assert sum(stage["issued"] for stage in job["batchyard"]["stages"]) == 20


@pytest.mark.local
def test_bad_rows_are_named_before_anything_runs(jobs: Jobs) -> None:
    items = [
        {"prompt": "a", "custom_id": "x"},
        {"text": "b"},
        {"prompt": [{"role": 1}]},
        {"prompt": "c", "custom_id": "x"},
    ]
    job = jobs.ended(jobs.create(items))
    assert job["status"] == "failed"
    assert [(error["code"], error["line"]) for error in job["errors"]["data"]] == [
        ("missing_prompt", 2),
        ("invalid_messages", 3),
        ("duplicate_custom_id", 4),
    ]


PROMPTS = pa.table(
    {
        "data_source": pa.array(["openai/gsm8k"] * 30),
        "prompt": pa.array(
            [[{"content": f"#### {number % 3}", "role": "user"}] for number in range(30)],
            pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())])),
        ),
        "reward_model": pa.array([{"ground_truth": "1", "style": "rule"}] * 30),
        "difficulty": pa.array([number / 2 for number in range(30)], pa.float16()),
    }
)


def test_rollouts_keep_the_columns_of_a_parquet_file_and_are_the_same_again(jobs: Jobs) -> None:
    def asked() -> int:
        return sum(call.startswith("####") for call in jobs.call_log.read_text().splitlines())

    options = {"model": "echo", "n": 4, "keep": "best"}
    calls = asked()
    job = jobs.ended(jobs.create(PROMPTS, recipe="rollout", options=options))
    assert job["status"] == "completed", job
    assert asked() - calls == 120
    file = jobs.artifact(job, "rollouts.parquet")
    rollouts = pq.read_table(io.BytesIO(file))
    assert rollouts.select(PROMPTS.column_names).equals(PROMPTS)
    assert rollouts["responses"].to_pylist()[4] == ["#### 1"] * 4
    assert rollouts["scores"].to_pylist()[3:6] == [[0.0] * 4, [1.0] * 4, [0.0] * 4]
    assert len({seed for seeds in rollouts["seeds"].to_pylist() for seed in seeds}) == 120
    metrics = json.loads(jobs.artifact(job, "metrics.json"))
    assert (metrics["mean@4"], metrics["pass@4"], metrics["samples"]) == (10 / 30, 10 / 30, 120)
    assert len(jobs.artifact(job, "samples.jsonl").splitlines()) == 120
    again = jobs.ended(jobs.create(PROMPTS, recipe="rollout", options=options))
    assert jobs.artifact(again, "rollouts.parquet") == file
    other = jobs.ended(jobs.create(PROMPTS, recipe="rollout", options=options, seed=1))
    assert jobs.artifact(other, "rollouts.parquet") != file


@pytest.mark.local
def test_rows_that_no_reward_can_score_are_named_before_anything_runs(jobs: Jobs) -> None:
    items = [
        {"prompt": "a", "data_source": "prized/qb"},
        {"prompt": "b", "data_source": "openai/gsm8k"},
        {"prompt": "c", "data_source": "prized/qa", "answer": "c", "scores": []},
    ]
    job = jobs.ended(jobs.create(items, recipe="rollout", options={"model": "echo"}))
    assert [(error["code"], error["line"]) for error in job["errors"]["data"]] == [
        ("no_reward", 1),
        ("missing_column", 2),
        ("column_taken", 3),
    ]


def test_a_rescored_job_asks_no_engine_and_an_extended_one_only_what_is_new(jobs: Jobs) -> None:
    options = {"model": "echo", "n": 2, "reward": "exact", "ground_truth": "answer"}
    items = rows(20)
    source = jobs.ended(jobs.create(items, recipe="rollout", options=options))
    assert source["batchyard"]["metrics"]["mean@2"] == 1.0
    calls = jobs.call_log.read_text()
    response = jobs.call("POST", f"/jobs/{source['id']}/rescore", json={"options": {"reward": "numeric"}})
    assert response.status_code == 200, response.text
    rescored = jobs.ended(response.json())
    assert rescored["status"] == "completed"
    assert jobs.call_log.read_text() == calls
    assert rescored["batchyard"]["reused"] == 40
    more = options | {"n": 4}
    extended = jobs.ended(jobs.create(items, recipe="rollout", options=more, answers_from=source["id"]))
    whole = jobs.ended(jobs.create(items, recipe="rollout", options=more))
    assert sum(stage["issued"] for stage in extended["batchyard"]["stages"]) == 40
    assert jobs.artifact(extended, "samples.jsonl") == jobs.artifact(whole, "samples.jsonl")


@pytest.mark.local
def test_only_options_that_judge_can_be_rescored(jobs: Jobs) -> None:
    job = jobs.ended(
        jobs.create(rows(2), recipe="rollout", options={"model": "echo", "reward": "exact", "ground_truth": "answer"})
    )
    refusal = jobs.call("POST", f"/jobs/{job['id']}/rescore", json={"options": {"n": 4}})
    assert refusal.status_code == 400
    assert refusal.json()["error"]["param"] == "options.n"
    assert "those that only judge are: reward" in refusal.json()["error"]["message"]


def test_a_retried_job_asks_for_the_failed_items_alone_and_the_same_as_before(jobs: Jobs) -> None:
    items = [{"prompt": f"retried {number}"} | ({"custom_id": "own"} if number == 3 else {}) for number in range(12)]
    options = {"model": "echo", "refuse": ["retried 3", "retried 8"]}
    first = jobs.ended(jobs.create(items, recipe="picky", options=options, seed=5, post_process=[{"step": "parquet"}]))
    assert (first["request_counts"]["completed"], first["request_counts"]["failed"]) == (10, 2)
    calls = Counter(jobs.call_log.read_text().splitlines())
    response = jobs.call("POST", f"/jobs/{first['id']}/retry", json={"options": {"refuse": []}})
    assert response.status_code == 200, response.text
    retried = jobs.ended(response.json())
    asked = Counter(jobs.call_log.read_text().splitlines()) - calls
    assert asked == Counter(["retried 3", "retried 8", "again: retried 3", "again: retried 8"])
    assert retried["batchyard"]["retry_of"] == first["id"]
    assert retried["request_counts"]["total"] == retried["request_counts"]["completed"] == 2
    results = [(result["number"], result["custom_id"], result["result"]["text"]) for result in jobs.results(retried)]
    assert results == [(4, "own", "again: retried 3"), (9, "item-9", "again: retried 8")]
    table = pq.read_table(io.BytesIO(jobs.artifact(retried, "results.parquet")))
    assert table.select(["line", "text"]).to_pylist() == [
        {"line": 4, "text": "again: retried 3"},
        {"line": 9, "text": "again: retried 8"},
    ]

    def bodies(job: Any, number: int) -> list[Any]:
        turns = jobs.call("GET", f"/jobs/{job['id']}/items/{number}").json()["turns"]
        return [(request["custom_id"], request["body"]) for turn in turns for request in turn["requests"]]

    for number in (4, 9):
        assert bodies(retried, number) == bodies(first, number)
    nothing = jobs.call("POST", f"/jobs/{retried['id']}/retry", json={})
    assert nothing.status_code == 400
    assert "none of its 2 items is failed" in nothing.json()["error"]["message"]


@pytest.mark.local
def test_a_dry_run_has_an_eta_once_its_model_was_measured(jobs: Jobs) -> None:
    jobs.ended(jobs.create(rows(20)))
    rollout = {"recipe": "rollout", "options": {"model": "echo", "n": 2, "reward": "exact", "ground_truth": "answer"}}
    plan = jobs.call("POST", "/jobs?dry_run=true", json=rollout | {"input": {"items": rows(100)}}).json()
    assert plan["stages"][0]["expected"] == 200
    assert plan["eta_seconds"] > 0.2  # the engine takes as long for each request
    assert plan["warnings"] == []
