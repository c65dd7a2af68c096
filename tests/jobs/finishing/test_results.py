"""The ended items of a job, as a recipe's finish hook and the steps see them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jobs.finishing.results import JobResults, StepResults
from store.jobs import chunk_records
from store.records import JobChunk
from tasks.context import AppContext
from tests.support.webapps import on_sqlite
from tests.support.written_jobs import NUMBERS, TOTAL, Written

pytestmark = on_sqlite


@pytest.fixture
def written(context: AppContext, project: str) -> Written:
    return Written(context, project)


@pytest.fixture
def results(written: Written, tmp_path: Path) -> Iterator[JobResults]:
    """The results of a job of which items 0 and 1 of the order have ended, and which expires."""
    written.end((0, "stuck"), (1, "failed"), error={"code": "no_answer", "message": None})
    written.end((2, "completed"))
    written.end((0, "completed"), life=2)
    chunks = [chunk.sha256 for chunk in chunks_of(written)]
    with (tmp_path / "items").open("w+b") as file:
        yield JobResults(written.context, written.job, chunks, "expired", file, tmp_path)


def chunks_of(written: Written) -> Sequence[JobChunk]:
    with written.context.database.read() as session:
        return chunk_records.of_job(session, written.job.id, "result")


def test_all_items_come_in_the_order_of_the_input_each_with_its_newest_end(results: JobResults) -> None:
    items = list(results.items())
    assert [item.number for item in items] == list(range(TOTAL))
    states = {item.number: item.state for item in items}
    assert states == dict.fromkeys(range(TOTAL), "expired") | {
        NUMBERS[0]: "completed",
        NUMBERS[1]: "failed",
        NUMBERS[2]: "completed",
    }
    first = items[NUMBERS[0]]
    assert (first.custom_id, first.columns) == ("id-3", {"prompt": "Why 3?"})
    assert (first.result["life"], first.error) == (2, None)
    assert items[NUMBERS[1]].error == {"code": "no_answer", "message": None}
    unended = items[NUMBERS[5]]
    assert (unended.result, unended.error, unended.ended_at) == ({"text": None}, None, None)


def test_an_item_that_goes_on_has_not_ended(written: Written, results: JobResults) -> None:
    written.end((2, "live"), life=2)
    again = JobResults(
        written.context, written.job, [chunk.sha256 for chunk in chunks_of(written)], "expired", results._file, Path()
    )
    assert [item.state for item in again.items()][NUMBERS[2]] == "expired"


def test_a_step_sees_items_as_requests_with_an_answer_or_an_error(results: JobResults, written: Written) -> None:
    rows = {row.custom_id: row for row in StepResults(written.context.artifacts, results).rows()}
    completed, failed, expired = rows["id-3"], rows["id-0"], rows["id-4"]
    assert (completed.line, completed.status_code, completed.error) == (3, 200, None)
    assert completed.response == {"choices": [{"message": {"content": "since 0"}}]}
    assert (failed.status_code, failed.response, failed.error) == (None, None, {"code": "no_answer", "message": None})
    assert expired.error == {"code": "expired", "message": None}


def test_a_step_takes_no_name_of_an_artifact_that_the_job_has(results: JobResults, written: Written) -> None:
    with results.create("best.jsonl") as file:
        file.write(json.dumps({}).encode())
    sha256, size, _ = results.artifacts["best.jsonl"]
    assert size == 2
    step = StepResults(written.context.artifacts, results)
    with pytest.raises(ValueError, match=r"has an artifact 'best\.jsonl' already"):
        step.add("best.jsonl", sha256, size)
    step.add("scores.jsonl", sha256, size, 1)
    assert results.artifacts["scores.jsonl"] == (sha256, 2, 1)
