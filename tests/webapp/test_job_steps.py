"""Post-processing steps of jobs: a row an item, artifacts beside the job's own, and what a step cannot use."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jobs import messages
from tasks.steps import registry
from tasks.steps.step import Results, Step, StepOptions
from tests.support.ended_jobs import EndedJobs
from tests.support.webapps import client_of, context_in

ROWS = [
    {"prompt": f"{number} + 1?", "metadata": {"expected": str(number + 1), "task": "sums"}} for number in range(3)
] + [{"prompt": "Why?"}]
STATES = {1: "completed", 2: "completed", 3: "failed", 4: "completed"}
TEXTS = {1: "It is 1.", 2: "It is 7.", 4: "So."}
STEPS = [{"step": "parquet"}, {"step": "score", "method": "numeric"}]


@pytest.fixture
def jobs(database_url: str, broker: str, tmp_path: Path, recipes: Path, monkeypatch: pytest.MonkeyPatch) -> EndedJobs:
    monkeypatch.setattr(messages, "validate", lambda *_: None)
    context = context_in(tmp_path, database_url=database_url, redis_url=broker, recipes=str(recipes))
    return EndedJobs(context, client_of(context))


def test_steps_get_a_row_an_item_and_their_artifacts_are_the_jobs(jobs: EndedJobs) -> None:
    created = jobs.create(ROWS, post_process=STEPS)
    assert created["batchyard"]["post_process"] == STEPS
    job = jobs.end(created, STATES, texts=TEXTS)
    parquet, score = ({**step, "status": "completed"} for step in STEPS)
    totals = {"total": 3, "correct": 1, "accuracy": 1 / 3, "without_expected": 1}
    assert job["batchyard"]["post_process"] == [parquet, score | {"summary": totals}]
    artifacts = jobs.artifacts(job)
    table = pq.read_table(io.BytesIO(artifacts["results.parquet"])).to_pylist()
    assert [(row["line"], row["custom_id"], row["text"]) for row in table] == [
        (1, "item-1", "It is 1."),
        (2, "item-2", "It is 7."),
        (3, "item-3", None),
        (4, "item-4", "So."),
    ]
    assert (table[2]["status_code"], table[2]["error_code"]) == (None, "no_answer")
    summary = json.loads(artifacts["score-summary.json"])
    assert (summary["total"], summary["correct"], summary["without_expected"]) == (3, 1, 1)
    files = json.loads(artifacts["manifest.json"])["artifacts"]
    assert files["scores.jsonl"]["sha256"] == hashlib.sha256(artifacts["scores.jsonl"]).hexdigest()


def test_a_retry_has_the_steps_of_the_first_job_and_runs_them_on_its_own_items(jobs: EndedJobs) -> None:
    first = jobs.end(jobs.create(ROWS, post_process=STEPS), STATES, texts=TEXTS)
    made = jobs.client.post(f"/v1/jobs/{first['id']}/retry").get_json()
    assert made["batchyard"]["post_process"] == STEPS
    retry = jobs.end(jobs.begun(made), {3: "completed"}, texts={3: "3"})
    assert json.loads(jobs.artifacts(retry)["score-summary.json"])["accuracy"] == 1.0


def test_what_a_step_cannot_use_is_an_error_of_its_row(jobs: EndedJobs) -> None:
    rows = [*ROWS, {"prompt": "a", "metadata": {"expected": "("}}]
    job = jobs.create(rows, post_process=[{"step": "score", "method": "regex"}])
    (error,) = job["errors"]["data"]
    assert (job["status"], error["line"], error["param"]) == ("failed", 5, "metadata.expected")
    assert "'expected' is no regular expression of RE2" in error["message"]


def test_a_step_that_fails_fails_alone_and_takes_no_name_of_the_jobs(
    jobs: EndedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rival(results: Results, options: StepOptions) -> None:
        with results.create() as file:
            file.write(b"mine")
        results.add("results.jsonl", file.sha256, file.size)

    steps: dict[str, Step[Any]] = {name: registry.STEPS.get(name) for name in registry.STEPS.names()}
    steps["rival"] = Step("rival", "takes a name.", StepOptions, rival)
    monkeypatch.setattr(registry.STEPS, "names", lambda: set(steps))
    monkeypatch.setattr(registry.STEPS, "get", steps.__getitem__)
    job = jobs.end(jobs.create(ROWS, post_process=[{"step": "rival"}, {"step": "parquet"}]), STATES, texts=TEXTS)
    failed, completed = job["batchyard"]["post_process"]
    assert (failed["status"], completed["status"], job["status"]) == ("failed", "completed", "completed")
    assert failed["error"] == "ValueError: the job has an artifact 'results.jsonl' already"
    assert len(jobs.artifacts(job)["results.jsonl"].splitlines()) == 4


def test_a_cancelled_job_runs_no_steps(jobs: EndedJobs) -> None:
    created = jobs.create(ROWS, post_process=STEPS)
    job = jobs.end(created, STATES, "cancelled", TEXTS)
    assert job["status"] == "cancelled"
    assert job["batchyard"]["post_process"] == STEPS
    assert "results.parquet" not in jobs.artifacts(job)
