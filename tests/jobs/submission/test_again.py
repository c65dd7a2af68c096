"""POST /v1/jobs/{id}/retry without a worker: which items the new job has, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flask.testing import FlaskClient

from jobs import finish, messages
from jobs.catalogue import catalogue_of
from jobs.intake.identity import canonical
from jobs.running import tick
from store.formats import items
from store.records import Job
from tasks.context import AppContext
from tests.support.ended_jobs import EndedJobs
from tests.support.webapps import client_of, context_in, on_sqlite

ROWS: list[dict[str, Any]] = [
    {"prompt": "Why 0?"},
    {"prompt": "Why 1?", "custom_id": "b", "nested": {"deep": [1, None]}},
    {"prompt": "Why 2?"},
    {"prompt": "Why 3?", "custom_id": "d"},
    {"prompt": "Why 4?"},
    {"prompt": "Why 5?"},
]
GRADER = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}", "reference": "42"}
STATES = {1: "completed", 2: "failed", 3: "completed", 4: "stuck", 5: "failed"}


@pytest.fixture
def context(
    database_url: str, broker: str, tmp_path: Path, recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> AppContext:
    monkeypatch.setattr(messages, "validate", lambda *_: None)
    return context_in(tmp_path, database_url=database_url, redis_url=broker, recipes=str(recipes))


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


class Jobs(EndedJobs):
    """Jobs of ROWS, and their retries."""

    def of_rows(self, **changes: Any) -> dict[str, Any]:
        """A job whose items have ended with STATES."""
        return self.end(self.create(ROWS, **changes), STATES)

    def retry(self, job: dict[str, Any], **body: Any) -> dict[str, Any]:
        answer = self.client.post(f"/v1/jobs/{job['id']}/retry", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.get_json())

    def refused(self, job: dict[str, Any], **body: Any) -> tuple[int, str, str]:
        """Return status, param and message with which a retry is refused."""
        answer = self.client.post(f"/v1/jobs/{job['id']}/retry", json=body)
        error = answer.get_json()["error"]
        return answer.status_code, error["param"], error["message"]

    def items(self, job: dict[str, Any]) -> list[tuple[int, str]]:
        page = self.client.get(f"/v1/jobs/{job['id']}/items").get_json()
        return [(item["number"], item["custom_id"]) for item in page["data"]]

    def seeds(self, job: dict[str, Any]) -> dict[str, int]:
        """Return a seed of each item, as its recipe gets it, by custom_id."""
        with self.context.database.read() as session:
            record = session.get_one(Job, job["id"])
        options = catalogue_of(self.context).recipe(record.recipe).options.model_validate(record.options)
        rows = items.Reader(self.context.artifacts, record.items_sha256 or "").read(0, 100)
        return {row.custom_id: tick.item_of(record, options, row).seed("argue", 1, 0) for row in rows}


@pytest.fixture
def jobs(context: AppContext, client: FlaskClient) -> Jobs:
    return Jobs(context, client)


def test_a_retry_has_the_items_that_did_not_complete_as_they_were(jobs: Jobs, client: FlaskClient) -> None:
    first = jobs.of_rows(seed=7, name="mine", metadata={"team": "a"}, options={"model": "echo", "shuffle": 3})
    assert first["request_counts"]["cancelled"] == 1
    made = jobs.retry(first)
    assert (made["status"], made["request_counts"]["total"]) == ("validating", 0)
    retry = jobs.begun(made)
    assert (retry["status"], retry["request_counts"]["total"]) == ("in_progress", 4)
    assert jobs.items(retry) == [(2, "b"), (4, "d"), (5, "item-5"), (6, "item-6")]
    for number in (2, 4, 5, 6):
        assert client.get(f"/v1/jobs/{retry['id']}/items/{number}").get_json()["columns"] == ROWS[number - 1]
    seeds = jobs.seeds(retry)
    assert len(seeds) == 4 and seeds.items() < jobs.seeds(first).items()
    kept = ("name", "metadata", "recipe", "input_file_id", "completion_window")
    assert [retry[name] for name in kept] == [first[name] for name in kept]
    ours, theirs = retry["batchyard"], first["batchyard"]
    assert (ours["retry_of"], ours["answers_from"], ours["seed"]) == (first["id"], None, 7)
    assert ours["options"] == theirs["options"]
    assert ours["config_sha256"] != theirs["config_sha256"]
    again = jobs.look(first)
    assert again["batchyard"]["retries"] == [retry["id"]]
    assert again == first | {"batchyard": theirs | {"retries": [retry["id"]]}}


@pytest.mark.parametrize(
    ("outcome", "states", "numbers"),
    [
        ("completed", ["failed"], [2, 5]),
        ("completed", ["stuck", "stuck"], [4]),
        ("cancelled", ["cancelled"], [6]),
        ("expired", ["expired", "stuck"], [4, 6]),
    ],
)
def test_the_states_of_the_items_are_chosen(jobs: Jobs, outcome: str, states: list[str], numbers: list[int]) -> None:
    first = jobs.end(jobs.create(ROWS), STATES, outcome)
    assert first["status"] == outcome
    retry = jobs.begun(jobs.retry(first, states=states))
    assert [number for number, _ in jobs.items(retry)] == numbers


def test_options_and_window_may_be_others_and_the_rest_stays(jobs: Jobs) -> None:
    first = jobs.of_rows(options={"model": "echo", "n": 4, "temperature": 0.5})
    retry = jobs.retry(first, options={"n": 2}, completion_window="2h")
    options = first["batchyard"]["options"]
    assert retry["batchyard"]["options"] == options | {"n": 2}
    assert retry["completion_window"] == "2h"


def test_a_retry_can_be_retried_and_adds_up(jobs: Jobs) -> None:
    second = jobs.end(jobs.begun(jobs.retry(jobs.of_rows())), {2: "completed", 4: "failed", 5: "completed"})
    counts = {"total": 4, "completed": 2, "failed": 1, "stuck": 0, "expired": 0, "cancelled": 1}
    assert second["request_counts"] == counts
    artifacts = jobs.artifacts(second)
    assert [json.loads(line)["number"] for line in artifacts["results.jsonl"].splitlines()] == [2, 4, 5, 6]
    assert json.loads(artifacts["config.json"])["items_sha256"] == second["batchyard"]["items_sha256"]
    third = jobs.begun(jobs.retry(second))
    assert jobs.items(third) == [(4, "d"), (6, "item-6")]
    ended = jobs.end(third, dict.fromkeys((4, 6), "completed"))
    status, param, message = jobs.refused(ended)
    assert (status, param) == (400, "states")
    assert "none of its 2 items is failed or stuck or expired or cancelled" in message
    assert "create a new job" in message


def test_a_retry_that_is_judged_anew_keeps_its_items(jobs: Jobs, client: FlaskClient) -> None:
    first = jobs.of_rows()
    retry = jobs.end(jobs.begun(jobs.retry(first, states=["failed"])), {2: "completed", 5: "failed"})
    answer = client.post(f"/v1/jobs/{retry['id']}/rescore", json={"options": {"reward": "exact"}})
    judged = jobs.begun(answer.get_json())
    assert jobs.items(judged) == [(2, "b"), (5, "item-5")]
    ours = judged["batchyard"]
    assert (ours["answers_from"], ours["work_sha256"]) == (retry["id"], retry["batchyard"]["work_sha256"])
    assert jobs.look(first)["batchyard"]["retries"] == [retry["id"]]


def test_the_published_configuration_of_a_job_is_what_its_hash_identifies(jobs: Jobs, client: FlaskClient) -> None:
    ends = {2: "completed", 5: "failed"}
    first = jobs.of_rows()
    retry = jobs.end(jobs.begun(jobs.retry(first, states=["failed"])), ends)
    answer = client.post(f"/v1/jobs/{retry['id']}/rescore", json={"options": {"reward": "exact"}})
    judged = jobs.end(jobs.begun(answer.get_json()), ends)
    for job in (first, retry, judged):
        configuration = json.loads(jobs.artifacts(job)["config.json"])
        assert hashlib.sha256(canonical(configuration)).hexdigest() == job["batchyard"]["config_sha256"]


def test_a_retry_keeps_the_columns_of_a_table_for_the_rows_that_it_has(jobs: Jobs) -> None:
    table = pa.table(
        {
            "prompt": [f"{number} + 1?" for number in range(6)],
            "answer": [str(number + 1) for number in range(6)],
            "weight": pa.array([number / 2 for number in range(6)], pa.float16()),
        }
    )
    pq.write_table(table, buffer := io.BytesIO(), row_group_size=2)
    options = {"model": "echo", "reward": "exact", "ground_truth": "answer", "limit": 5}
    job = jobs.create(buffer.getvalue(), "in.parquet", recipe="rollout", options=options)
    first = jobs.end(job, STATES)
    retry = jobs.begun(jobs.retry(first))
    assert jobs.items(retry) == [(2, "item-2"), (4, "item-4"), (5, "item-5")]
    ended = jobs.end(retry, {4: "failed"})
    assert ended["batchyard"]["report"] == {"status": "completed"}
    rollouts = pq.read_table(io.BytesIO(jobs.artifacts(ended)["rollouts.parquet"]))
    kept = table.take([1, 3, 4])
    assert rollouts.select(["answer", "weight"]).equals(kept.select(["answer", "weight"]))
    assert [prompt[0]["content"] for prompt in rollouts["prompt"].to_pylist()] == kept["prompt"].to_pylist()


def test_other_options_are_checked_with_the_rows_of_these_items(jobs: Jobs) -> None:
    first = jobs.of_rows(recipe="rollout", options={"model": "echo", "reward": GRADER})
    failed = jobs.begun(jobs.retry(first, options={"reward": "exact", "ground_truth": "answer"}))
    assert failed["status"] == "failed"
    errors = failed["errors"]["data"]
    assert [(error["code"], error["line"]) for error in errors] == [("missing_column", line) for line in (2, 4, 5, 6)]
    status, _, message = jobs.refused(failed)
    assert (status, "it has no items" in message) == (400, True)


def test_a_retry_that_is_cancelled_before_it_began_has_no_items(jobs: Jobs, client: FlaskClient) -> None:
    made = jobs.retry(jobs.of_rows())
    client.post(f"/v1/jobs/{made['id']}/cancel")
    assert finish.run(jobs.context, made["id"], "here/1/task")
    job = jobs.look(made)
    assert (job["status"], job["request_counts"]["total"], job["request_counts"]["cancelled"]) == ("cancelled", 0, 0)
    assert "results.jsonl" not in {artifact["name"] for artifact in job["batchyard"]["artifacts"]}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"hint": "Think."}, "hint", "Unknown parameter"),
    ({"states": ["completed"]}, "states.0", "Supported values: 'failed', 'stuck'"),
    ({"states": []}, "states", "a list of 1 to 4"),
    ({"states": ["expired"]}, "states", "none of its 6 items is expired"),
    ({"options": {"temprature": 1}}, "options.temprature", "'options.temperature'"),
    ({"options": {"model": "echi"}}, "options.model", "Did you mean 'echo'?"),
    ({"options": {"limit": 2}}, "options.limit", "Leave it out"),
    ({"options": {"shuffle": 2}}, "options.shuffle", "Leave it out"),
    ({"completion_window": "1s"}, "completion_window", "supported are"),
]


@on_sqlite
def test_what_cannot_be_is_refused_with_its_place_and_a_remedy(jobs: Jobs, client: FlaskClient) -> None:
    first = jobs.of_rows()
    for body, param, says in REFUSED:
        status, place, message = jobs.refused(first, **body)
        assert (status, place) == (400, param)
        assert says in message
    assert len(client.get("/v1/jobs").get_json()["data"]) == 1


def test_a_job_that_has_not_ended_and_one_whose_input_is_gone_are_not_retried(jobs: Jobs, client: FlaskClient) -> None:
    job = jobs.create(ROWS)
    status, param, message = jobs.refused(job)
    assert (status, param) == (409, "job_id")
    assert "is in_progress; wait for its end, or cancel it" in message
    first = jobs.end(job, STATES)
    assert client.delete(f"/v1/files/{first['input_file_id']}").status_code == 200
    status, _, message = jobs.refused(first)
    assert (status, "upload it again" in message) == (409, True)


def test_the_same_key_and_body_make_one_retry(jobs: Jobs, client: FlaskClient) -> None:
    first = jobs.of_rows()

    def post(**body: Any) -> Any:
        return client.post(f"/v1/jobs/{first['id']}/retry", json=body, headers={"Idempotency-Key": "k"})

    one, again, other = post(), post(), post(states=["stuck"])
    assert one.status_code == again.status_code == 200
    assert one.get_json()["id"] == again.get_json()["id"]
    assert (other.status_code, other.get_json()["error"]["code"]) == (409, "idempotency_key_reused")
    bare = client.post(f"/v1/jobs/{first['id']}/retry")
    assert bare.get_json()["batchyard"]["retry_of"] == first["id"]


def test_a_job_is_retried_by_its_own_project_only(jobs: Jobs, context: AppContext) -> None:
    first = jobs.of_rows()
    stranger = client_of(context, project="other")
    theirs, nobodys = (stranger.post(f"/v1/jobs/{id}/retry", json={}) for id in (first["id"], "job_0"))
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.text.replace(first["id"], "job_0") == nobodys.text
    assert stranger.get("/v1/jobs").get_json()["data"] == []
