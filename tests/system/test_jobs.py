"""Jobs on a real stack: a recipe of the deployment's own, from a file in a folder to its results."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.stacks import RunningStack

MODELS = """
[models.echo]
engine = "echo"
[models.echo.engine_args]
latency_ms = 20
"""
DEBATE = '''
from pydantic import Field
from batchyard.recipes import Ask, Failure, Flow, Item, Options, Result, Score, gate, recipe, reward

class Debate(Options):
    model: str
    judge: str
    n: int = Field(3, ge=2, le=9)

@recipe("debate", Debate, stages=("argue", "judge"))
def debate(item: Item, options: Debate) -> Flow:
    """Let several answers compete."""
    answers = yield [Ask("argue", item.chat(), model=options.model, temperature=0.8) for _ in range(options.n)]
    texts = [answer.text for answer in answers if answer.ok]
    if not texts:
        return item.failed("no_answer")
    scores = yield [Score("acme", "acme/qa", text, item.columns["answer"]) for text in texts]
    (verdict,) = yield [
        Ask("judge", item.chat("Which?"), model=options.judge, choice=[str(number) for number in range(len(texts))])
    ]
    if not verdict.ok:
        return item.stuck("judge_failed", candidates=texts)
    return Result(text=texts[int(verdict.text)], votes=len(texts), scores=[score.score for score in scores])

@reward("acme", data_sources=("acme/qa",), columns=("answer",))
def acme(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)
'''


class Jobs:
    """The jobs of a stack, over HTTP."""

    def __init__(self, stack: RunningStack) -> None:
        self.stack = stack
        self.http = requests.Session()
        self.http.headers["Authorization"] = f"Bearer {stack.key}"

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        return self.http.request(method, f"{self.stack.url}/v1{path}", timeout=30, **options)

    def create(self, items: list[dict[str, Any]], **body: Any) -> Any:
        content = "".join(json.dumps(item) + "\n" for item in items).encode()
        file = self.stack.client.files.create(file=("items.jsonl", content), purpose="user_data")
        body = {"recipe": "debate", "options": {"model": "echo", "judge": "echo"}} | body
        response = self.call("POST", "/jobs", json={"input_file_id": file.id, **body})
        assert response.status_code == 200, response.text
        return response.json()

    def ended(self, job: Any, seconds: float = 90) -> Any:
        deadline = time.monotonic() + seconds
        while job["status"] not in ("completed", "failed", "expired", "cancelled"):
            assert time.monotonic() < deadline, job
            time.sleep(0.2)
            job = self.call("GET", f"/jobs/{job['id']}").json()
        return job

    def artifact(self, job: Any, name: str) -> bytes:
        file_id = next(entry["file_id"] for entry in job["batchyard"]["artifacts"] if entry["name"] == name)
        return self.stack.client.files.content(file_id).content

    def results(self, job: Any) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.artifact(job, "results.jsonl").splitlines()]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder: Path = tmp_path_factory.mktemp("recipes")
    (folder / "debate.py").write_text(DEBATE)
    stack = RunningStack.start(MODELS, BATCHYARD_ALLOW_SIMULATED="true", BATCHYARD_RECIPES=str(folder))
    yield Jobs(stack)
    stack.kill()


def rows(number: int) -> list[dict[str, Any]]:
    return [{"prompt": f"question {index}", "answer": f"question {index}"} for index in range(number)]


def test_a_recipe_in_the_folder_runs_over_its_items(jobs: Jobs) -> None:
    job = jobs.ended(jobs.create(rows(50)))
    assert job["status"] == "completed", job
    assert job["request_counts"]["completed"] == 50
    results = jobs.results(job)
    assert [result["custom_id"] for result in results] == [f"item-{index}" for index in range(50)]
    assert results[7]["result"] == {"text": "question 7", "votes": 3, "scores": [1.0, 1.0, 1.0]}
    assert Counter(stage["name"] for stage in job["batchyard"]["stages"]) == {"argue": 1, "judge": 1}
    assert [stage["answered"] for stage in job["batchyard"]["stages"]] == [150, 50]
