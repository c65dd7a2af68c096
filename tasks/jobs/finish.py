"""Finishing a job: its items in the order of the input, the recipe's own artifacts, the manifest, and the end."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from batchyard import __version__
from batchyard.errors import LeaseLost, UnavailableError
from batchyard.recipes import Report, blocks
from batchyard.statuses import TERMINAL
from batchyard.tariffs import TotalCost
from store.accounting import usage as accounts
from store.artifacts import Artifacts, ArtifactWriter
from store.formats import items as items_file
from store.formats import job_chunks
from store.formats.results import ResultRow
from store.jobs import chunk_records, lifecycle, replies
from store.jobs import reading as job_records
from store.jobs.reading import Tokens
from store.records import Job, JobReply
from tasks import messages
from tasks.context import AppContext
from tasks.heartbeat import hold_job
from tasks.jobs import identity, journal, progress, replay
from tasks.jobs.rows import tables
from tasks.steps import registry

log = logging.getLogger(__name__)

RESULTS = "results.jsonl"
NEVER_ENDED = {"expired": "expired", "cancelled": "cancelled", "failed": "cancelled", "completed": "cancelled"}
"""The state of items that have not ended, by the job's outcome."""


@dataclass
class EndedItem:
    """See batchyard.recipes.EndedItem."""

    number: int
    custom_id: str
    columns: Mapping[str, Any]
    state: str
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None
    started_at: float | None
    ended_at: float | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> EndedItem:
        """Return the item of a result row, whose `result` and `error` are JSON. It has no columns."""
        kept = {name: record[name] for name in ("number", "custom_id", "state", "started_at", "ended_at")}
        error = record["error"]
        return cls(
            columns={},
            result=orjson.loads(record["result"]),
            error=None if error is None else orjson.loads(error),
            **kept,
        )


def start_ready(context: AppContext) -> None:
    """Start to finish every job whose items and batches have all ended."""
    with context.database.read() as session:
        if not lifecycle.any_ends(session):  # the usual case, without waiting for the write lock
            return
    with context.database.write() as session:
        ready = lifecycle.claim_finishable(session, context.settings.queue_seconds)
    for job_id in ready:
        messages.finish_job(job_id)


def run(context: AppContext, job_id: str, holder: str) -> bool:
    """Write a job's artifacts and end it. False if another worker does, or it has ended.

    The artifacts of one that has ended are written again, as new files, if an item was resolved since.
    """
    with hold_job(context, job_id, holder, context.settings.queue_seconds) as lease:
        if lease is None:
            return False
        with context.database.read() as session:
            job = session.get_one(Job, job_id)
            own = chunk_records.of_job(session, job_id)
            stages = replay.stage_records(session, job_id)
            usage = job_records.usage(session, [job_id])[job_id]
            cost = accounts.job_costs(session, [job_id]).get(job_id)
            deaths = job_records.engine_deaths(session, job_id)
            item_replies = replies.after(session, job_id, 0)
        if job.status not in ("finalizing", "cancelling") and not (job.status in TERMINAL and job.unwritten):
            return False
        outcome = "cancelled" if job.status == "cancelling" else job.outcome or "completed"
        outcome = job.status if job.status in TERMINAL else outcome
        log.info("finishing", extra={"job_id": job_id, "outcome": outcome})
        with (
            tempfile.TemporaryFile(prefix="batchyard-job-") as file,
            tempfile.TemporaryDirectory(prefix="batchyard-job-") as folder,
        ):
            results = [chunk.sha256 for chunk in own if chunk.kind == "result"]
            ended = Results(context, job, results, NEVER_ENDED[outcome], file, Path(folder))
            if job.total and not context.recipes.is_composite(job.recipe):
                judgements = [chunk.sha256 for chunk in own if chunk.kind == "judgement"]
                ended.add_journal(stages, judgements, item_replies)
            report = _report(context, job, ended) if job.total else Report()
            _write_own(ended, job, report)
            steps = job.post_process
            if job.total and outcome != "cancelled":  # then the client wants no more work on it
                steps = [_run_step(context.artifacts, ended, job, registry.request(entry)) for entry in steps]
            _write_manifest(ended, job, outcome, usage, cost, deaths)
        with context.database.write() as session:
            lease.guard(session)
            record = session.get_one(Job, job_id)
            if record.status != job.status:
                return False  # a cancellation has won; its message does this again
            record.metrics = dict(report.metrics)
            record.report = ended.status | ({"warnings": list(report.warnings)} if report.warnings else {})
            record.post_process = steps
            record.expired_items = record.unended if outcome == "expired" else 0
            record.cancelled_items = record.unended if outcome != "expired" else 0
            record.waiting_for_verdict = 0
            record.unwritten -= job.unwritten
            if job.status == outcome or lifecycle.transition(session, job_id, job.status, outcome):
                lease.release(session, attempts=0, attempt_error=None)
                for name, (sha256, size, lines) in ended.artifacts.items():
                    lifecycle.add_artifact(session, record, name, sha256, size, lines)
    if job.status not in TERMINAL:
        ends = {"expired": record.expired_items, "cancelled": record.cancelled_items}
        progress.count_items(context, job.recipe, {state: number for state, number in ends.items() if number}, {})
    log.info("job ended", extra={"job_id": job_id, "status": outcome})
    progress.publish(context, job_id)
    messages.wake_parent(context.redis, job.parent_id)
    return True


def _report(context: AppContext, job: Job, results: Results) -> Report:
    """Return what the recipe's finish hook reports. If it fails, the job has its results without a report."""
    try:
        recipe = context.recipes.recipe(job.recipe)
        report = Report()
        if recipe.finish is not None:
            report = recipe.finish(results, recipe.options.model_validate(job.options))
        orjson.dumps([report.metrics, blocks.as_json(report.view), report.warnings], option=orjson.OPT_SERIALIZE_NUMPY)
    except (LeaseLost, UnavailableError):
        raise
    except Exception as error:
        log.exception("report failed", extra={"job_id": job.id, "recipe": job.recipe})
        results.status = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        return Report()
    return report


def _write_own(results: Results, job: Job, report: Report) -> None:
    """Write what every job has: results, metrics, view and configuration."""
    if job.total:
        with results.create(RESULTS) as file:
            for item in results.items():
                line = {
                    "custom_id": item.custom_id,
                    "number": item.number,
                    "state": item.state,
                    "result": item.result,
                    "error": item.error,
                }
                file.write(orjson.dumps(line) + b"\n")
    _write_json(results, "metrics.json", report.metrics)
    _write_json(results, "view.json", blocks.as_json(report.view))
    _write_json(results, "config.json", identity.configuration(job))


def _run_step(artifacts: Artifacts, results: Results, job: Job, entry: dict[str, Any]) -> dict[str, Any]:
    """Run a post-processing step. Return its entry with its outcome; a step that fails fails alone."""
    try:
        registry.run(entry, _StepResults(artifacts, results))
    except (LeaseLost, UnavailableError):
        raise
    except Exception as error:
        log.exception("step failed", extra={"job_id": job.id, "step": entry["step"]})
        return entry | {"status": "failed", "error": f"{type(error).__name__}: {error}"}
    return entry | {"status": "completed"}


def _write_manifest(
    results: Results, job: Job, outcome: str, usage: Tokens, cost: TotalCost | None, deaths: Mapping[str, int]
) -> None:
    files = {name: {"sha256": sha256, "bytes": size} for name, (sha256, size, _) in sorted(results.artifacts.items())}
    manifest = {
        "job": job.id,
        "recipe": job.recipe,
        "recipe_sha256": job.recipe_sha256,
        "config_sha256": job.config_sha256,
        "work_sha256": job.work_sha256,
        "input_sha256": job.input_sha256,
        "items_sha256": job.items_sha256,
        "options": job.options,
        "seed": job.seed,
        "models": job.models,
        "simulated": job.simulated,
        "amendments": job.amendments,
        "batchyard": __version__,
        "request_counts": {
            "total": job.total,
            "completed": job.completed,
            "failed": job.failed,
            "stuck": job.stuck,
            **dict.fromkeys(("expired", "cancelled"), 0),
            **{NEVER_ENDED[outcome]: job.unended},
        },
        "usage": {f"{name}_tokens": tokens for name, tokens in usage._asdict().items()},
        "cost": cost and cost.document,
        "engine_deaths": deaths,
        "created_at": job.created_at,
        "started_at": job.in_progress_at,
        "ended_at": job.finalizing_at or job.cancelling_at,
        "artifacts": files,
    }
    _write_json(results, "manifest.json", manifest)


def _write_json(results: Results, name: str, value: Any) -> None:
    with results.create(name) as file:
        file.write(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2) + b"\n")


@dataclass
class Results:
    """The ended items of a job (batchyard.recipes.Results). They stand in a local file, and are read by number.

    Attributes:
        artifacts: SHA-256, bytes and lines of each artifact by name.
        status: what became of the recipe's report.
    """

    _context: AppContext
    _job: Job
    _chunks: list[str]
    _unended: str
    _file: IO[bytes]
    _folder: Path
    artifacts: dict[str, tuple[str, int, int | None]] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=lambda: {"status": "completed"})
    _starts: npt.NDArray[np.int64] | None = None

    @property
    def _artifacts(self) -> Artifacts:
        return self._context.artifacts

    def items(self) -> Iterator[EndedItem]:
        """Stream all items in the order of the input."""
        starts = self._index()
        order = np.flatnonzero(starts[:, 1])
        for number in order.tolist():
            columns_at, columns_size, result_at, result_size = starts[number].tolist()
            custom_id, columns = orjson.loads(self._read(columns_at, columns_size))
            result: dict[str, Any] = {"state": self._unended, "result": {"text": None}, "error": None}
            if result_size:
                result = orjson.loads(self._read(result_at, result_size))
            yield EndedItem(
                number=number,
                custom_id=custom_id,
                columns=columns,
                state=result["state"],
                result=result["result"],
                error=result["error"],
                started_at=result.get("started_at"),
                ended_at=result.get("ended_at"),
            )

    def tables(self) -> Iterator[pa.Table]:
        """Stream the input rows of these items in the same order."""
        is_item = self._index()[:, 1] > 0
        first = 0
        with self._artifacts.open(self._job.input_sha256) as source:
            for table in tables(source, self._job.input_name):
                own = np.flatnonzero(is_item[first : first + table.num_rows])
                if own.size:
                    yield table if own.size == table.num_rows else table.take(pa.array(own))
                first += table.num_rows

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new artifact for writing."""
        with self._artifacts.create() as file:
            yield file  # type: ignore[misc]  # a writer is a file
        self.artifacts[name] = (file.sha256, file.size, None)

    def of_child(self, job_id: str, name: str) -> Path | None:
        """Copy an artifact of a job of the same project to a local file, None if it has none of that name."""
        path = self._folder / f"{job_id}-{name}"
        if not path.exists():
            with self._context.database.read() as session:
                file = lifecycle.find_artifact(session, self._job.project_id, job_id, name)
            if file is None:
                return None
            with self._artifacts.open(file.sha256) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
        return path

    def add_journal(
        self, stages: Sequence[replay.StageRecords], judgements: Sequence[str], item_replies: Sequence[JobReply]
    ) -> None:
        """Write the journal."""
        numbers = items_file.Reader(self._artifacts, self._job.items_sha256 or "").numbers()
        with self._artifacts.create() as file:
            rows = journal.write(file, self._artifacts, numbers, stages, judgements, item_replies)
        self.artifacts[journal.NAME] = (file.sha256, file.size, rows)

    def _read(self, start: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, start)

    def _index(self) -> npt.NDArray[np.int64]:
        """Copy items and results to the local file. Return where each stands, by number."""
        if self._starts is not None:
            return self._starts
        reader = items_file.Reader(self._artifacts, self._job.items_sha256 or "")
        rows = int(reader.numbers().max()) + 1 if reader.total else 0
        starts = np.zeros((rows, 4), np.int64)
        at = 0
        for first in range(0, reader.total, items_file.GROUP_ITEMS):
            for row in reader.read(first, items_file.GROUP_ITEMS):
                text = orjson.dumps([row.custom_id, row.columns])
                self._file.write(text)
                starts[row.number, :2] = at, len(text)
                at += len(text)
        for sha256 in self._chunks:
            table = job_chunks.read(self._artifacts, sha256)
            for row in table.to_pylist():
                if row["state"] in job_chunks.UNENDED:
                    starts[row["number"], 2:] = 0
                    continue
                ended = {
                    "state": row["state"],
                    "result": orjson.Fragment(row["result"]),
                    "error": None if row["error"] is None else orjson.Fragment(row["error"]),
                    "started_at": row["started_at"],
                    "ended_at": row["ended_at"],
                }
                text = orjson.dumps(ended)
                self._file.write(text)
                starts[row["number"], 2:] = at, len(text)
                at += len(text)
        self._file.flush()
        self._starts = starts
        return starts


@dataclass
class _StepResults:
    """The items of a job as post-processing steps see them (tasks.steps.step.Results)."""

    _artifacts: Artifacts
    _results: Results

    def rows(self) -> Iterator[ResultRow]:
        """Stream a row for each item in the order of the input: its columns as body, its result's text as answer."""
        for item in self._results.items():
            text = item.result.get("text")
            completed = item.state == "completed"
            yield ResultRow(
                line=item.number + 1,
                custom_id=item.custom_id,
                body=dict(item.columns),
                status_code=200 if completed else None,
                response={"choices": [{"message": {"content": text}}]} if completed and text is not None else None,
                error=None if completed else dict(item.error or {"code": item.state, "message": None}),
            )

    def create(self) -> ArtifactWriter:
        return self._artifacts.create()

    def add(self, name: str, sha256: str, size: int, lines: int | None = None) -> None:
        if name in self._results.artifacts:
            raise ValueError(f"the job has an artifact {name!r} already")
        self._results.artifacts[name] = (sha256, size, lines)
