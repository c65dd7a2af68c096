"""Rounds of a composite that may turn out not to be needed, as those of `generate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from jobs import finish, messages
from tasks.context import AppContext
from tests.support.ended_jobs import EndedComposites
from tests.support.webapps import client_of, context_in, upload

SEEDS = [{"topic": "trains"}, {"topic": "clocks"}]
ROUNDS = 5


class Generations(EndedComposites):
    """Jobs of `generate` over SEEDS."""

    def post(self, **options: Any) -> Any:
        content = b"".join(json.dumps(row).encode() + b"\n" for row in SEEDS)
        file_id = upload(self.client, content, purpose="user_data").get_json()["id"]
        options = {"model": "echo", "count": 10, "templates": ["Of {topic}."], "rounds": ROUNDS} | options
        return self.client.post("/v1/jobs", json={"recipe": "generate", "options": options, "input_file_id": file_id})


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


@pytest.fixture
def context(database_url: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppContext:
    for name in ("validate", "advance", "finish"):
        monkeypatch.setattr(messages, name, lambda *_: None)
    return context_in(tmp_path, database_url=database_url, redis_url=broker)


@pytest.fixture
def generations(context: AppContext, client: FlaskClient) -> Generations:
    return Generations(context, client)


def test_a_round_that_leaves_no_input_for_the_next_is_the_last(generations: Generations) -> None:
    job = generations.started()
    (first,) = generations.children(job).values()
    assert (first["recipe"], first["batchyard"]["child_key"]) == ("generate-round", "rows/0/0")
    generations.end(generations.begun(first), {1: "completed", 2: "completed"})
    assert generations.tick(job)["status"] == "finalizing"
    assert finish.run(generations.context, job["id"], "here/1/task")
    job = generations.look(job)
    assert job["request_counts"]["completed"] == job["request_counts"]["total"] == ROUNDS
    assert len(generations.children(job)) == 1, "no job was started for a round that is not needed"
    lines = [json.loads(line) for line in generations.artifacts(job)["results.jsonl"].splitlines()]
    assert [line["result"]["job_id"] for line in lines] == [first["id"], *[None] * (ROUNDS - 1)]


def test_a_round_that_does_not_complete_leaves_the_later_ones_without_an_input(generations: Generations) -> None:
    job = generations.started()
    (first,) = generations.children(job).values()
    generations.end(generations.begun(first), {1: "completed", 2: "completed"}, outcome="expired")
    generations.tick(job)
    counts = generations.look(job)["request_counts"]
    assert (counts["failed"], counts["completed"]) == (ROUNDS, 0)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"model": "echi"}, "options.model"),
        ({"gates": ["contians:x"]}, "options.gates"),
        ({"personas": ["a nurse"]}, "options.personas"),
        ({"similarity": 0.2}, "options.similarity"),
        ({"count": 0}, "options.count"),
        ({"judge": {"model": "echi"}}, "options.judge.model"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    generations: Generations, options: dict[str, Any], param: str
) -> None:
    place, message = generations.refused(**options)
    assert place.startswith(param), message
