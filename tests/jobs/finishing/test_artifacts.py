"""What an ended job leaves behind: its results in the input's order, its report, and a manifest of all of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchyard.errors import UnavailableError
from batchyard.recipes import Report
from jobs.finishing import artifacts
from jobs.finishing.results import JobResults
from store.jobs import chunk_records
from store.records import Batch
from tasks.context import AppContext
from tests.support.webapps import on_sqlite
from tests.support.written_jobs import TOTAL, Written

pytestmark = on_sqlite

REPORTING = """
@recipe("reporting", Options, stages=("a",), finish=%s)
def reporting(item: Item, options: Options) -> Flow:
    yield []
"""


@pytest.fixture
def written(context: AppContext, project: str) -> Written:
    return Written(context, project)


@pytest.fixture
def results(written: Written, tmp_path: Path) -> Iterator[JobResults]:
    written.end((0, "completed"), (1, "failed"), error={"code": "no_answer", "message": None})
    with written.context.database.read() as session:
        chunks = [chunk.sha256 for chunk in chunk_records.of_job(session, written.job.id, "result")]
    with (tmp_path / "items").open("w+b") as file:
        yield JobResults(written.context, written.job, chunks, "expired", file, tmp_path)


def content(results: JobResults, written: Written, name: str) -> bytes:
    sha256, size, _ = results.artifacts[name]
    read = written.context.artifacts.read(sha256)
    assert len(read) == size
    return read


def report_of(written: Written, results: JobResults, finish: str, deployed: Callable[[str], AppContext]) -> Report:
    """The report of a recipe with this finish hook."""
    context = deployed(REPORTING % finish)
    job = written.job
    job.recipe, job.options = "reporting", {}
    return artifacts.report_of(context, job, results)


def test_every_item_has_one_line_in_the_order_of_the_input(written: Written, results: JobResults) -> None:
    artifacts.write_common(results, written.job, Report(metrics={"score": 0.5}))
    lines = [json.loads(line) for line in content(results, written, "results.jsonl").splitlines()]
    assert [line["number"] for line in lines] == list(range(TOTAL))
    assert {line["state"] for line in lines} == {"completed", "failed", "expired"}
    assert json.loads(content(results, written, "metrics.json")) == {"score": 0.5}


def test_a_report_that_fails_costs_the_report_alone(
    written: Written, results: JobResults, deployed: Callable[[str], AppContext]
) -> None:
    report = report_of(written, results, "lambda results, options: 1 / 0", deployed)
    assert (report.metrics, results.status["status"]) == ({}, "failed")
    assert "ZeroDivisionError" in results.status["error"]


def test_a_report_that_is_no_json_has_failed(
    written: Written, results: JobResults, deployed: Callable[[str], AppContext]
) -> None:
    hook = "lambda results, options: __import__('batchyard.recipes').recipes.Report(metrics={'x': {1, 2}})"
    assert report_of(written, results, hook, deployed).metrics == {}
    assert "TypeError" in results.status["error"]


def test_a_store_that_is_away_is_no_fault_of_the_report(
    written: Written, results: JobResults, deployed: Callable[[str], AppContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: JobResults) -> Iterator[Any]:
        raise UnavailableError("the store is away")

    monkeypatch.setattr(JobResults, "items", away)
    with pytest.raises(UnavailableError):
        report_of(written, results, "lambda results, options: list(results.items())", deployed)


def test_a_step_that_fails_says_why_and_harms_nothing_else(written: Written, results: JobResults) -> None:
    entry = {"step": "score", "options": {"expected": {"kind": "unknown"}}}
    ended = artifacts.run_step(written.context.artifacts, results, written.job, entry)
    assert (ended["step"], ended["status"]) == ("score", "failed") and ended["error"]


def test_the_manifest_names_each_file_with_its_hash_and_counts_every_item(
    written: Written, results: JobResults, tmp_path: Path
) -> None:
    artifacts.write_common(results, written.job, Report())
    written.update(completed=1, failed=1)
    with written.context.database.write() as session:
        session.get_one(Batch, written.batches["argue"]).engine_deaths = {"echo": {"deaths": 2}}
    key = tmp_path / "signing.key"
    key.write_text("no key")
    settings = written.context.settings.model_copy(update={"signing_key_file": str(key)})
    context = dataclasses.replace(written.context, settings=settings)
    ((code, message),) = artifacts.write_manifest(context, results, written.job, "expired")
    manifest = json.loads(content(results, written, "manifest.json"))
    assert (code, message) == ("manifest_unsigned", f"The manifest is not signed: {manifest['unsigned']}")
    assert manifest["artifacts"].keys() == {"results.jsonl", "metrics.json", "view.json", "config.json"}
    for name, entry in manifest["artifacts"].items():
        assert (entry["sha256"], entry["bytes"]) == results.artifacts[name][:2]
    assert manifest["earlier_manifests"].keys() == set(written.batches.values())
    counts = manifest["request_counts"]
    assert (counts["completed"], counts["failed"], counts["expired"], counts["cancelled"]) == (1, 1, TOTAL - 2, 0)
    assert (manifest["simulated"], manifest["engine_deaths"], manifest["cost"]) == (True, {"echo": 2}, None)
