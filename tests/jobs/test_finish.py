"""The end of a job: what is written whatever fails, and who may write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from jobs import finish
from tasks.context import AppContext
from tests.support.running_jobs import Running

pytestmark = pytest.mark.usefixtures("alone")

ONCE = """
from batchyard.recipes import Report
FINISH

@recipe("two", Options, stages=("draft",), finish=finish)
def two(item: Item, options: Options) -> Flow:
    (draft,) = yield [Ask("draft", item.chat(), model="echo")]
    if draft.text == "bad":
        return item.failed("no_good", "bad")
    return Result(text=draft.text)
"""
GOOD = """
def finish(results, options):
    with results.create("texts.txt") as file:
        file.write(" ".join(str(item.result["text"]) for item in results.items()).encode())
    return Report(metrics={"items": sum(1 for _ in results.items())})
"""
RAISING = """
def finish(results, options):
    raise ValueError("no report")
"""


@pytest.fixture
def ended(deployed: Callable[[str], AppContext], project: str) -> Callable[[str], Running]:
    """Makes a job whose items have ended, of a recipe with this finish hook."""

    def make(hook: str) -> Running:
        running = Running(deployed(ONCE.replace("FINISH", hook)), project, ["one", "bad", "three"])
        running.tick()
        running.answer("draft")
        running.tick()
        return running

    return make


def content(running: Running, name: str) -> bytes:
    with running.context.artifacts.open(running.files()[name].sha256) as file:
        return file.read()


def test_a_job_has_its_results_in_the_order_of_the_input_and_what_its_recipe_writes(
    ended: Callable[[str], Running],
) -> None:
    running = ended(GOOD)
    running.finish()
    job = running.job
    assert (job.status, job.metrics, job.report) == ("completed", {"items": 3}, {"status": "completed"})
    lines: list[dict[str, Any]] = [orjson.loads(line) for line in content(running, "results.jsonl").splitlines()]
    assert [(line["number"], line["state"]) for line in lines] == [(0, "completed"), (1, "failed"), (2, "completed")]
    assert content(running, "texts.txt") == b"one None three"
    manifest = orjson.loads(content(running, "manifest.json"))
    assert manifest["request_counts"]["failed"] == 1
    assert {"texts.txt", "journal.parquet", "config.json"} <= manifest["artifacts"].keys()


def test_a_report_that_fails_leaves_a_job_its_results(ended: Callable[[str], Running]) -> None:
    running = ended(RAISING)
    running.finish()
    assert running.job.status == "completed"
    assert running.job.report == {"status": "failed", "error": "ValueError: no report"}
    assert len(content(running, "results.jsonl").splitlines()) == 3


def test_a_job_is_finished_once(ended: Callable[[str], Running]) -> None:
    running = ended(GOOD)
    running.finish()
    files = running.files()
    assert not finish.run(running.context, running.id, "there/2/task")
    assert running.files().keys() == files.keys()


def test_a_job_in_progress_is_not_finished(deployed: Callable[[str], AppContext], project: str) -> None:
    running = Running(deployed(ONCE.replace("FINISH", GOOD)), project, ["one"])
    assert not finish.run(running.context, running.id, "here/1/task")
    assert running.job.status == "in_progress"
