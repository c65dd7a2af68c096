"""The ended items of a job, as its recipe's finish hook and its post-processing steps see them."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from batchyard import json_lines
from batchyard.errors import RequestError
from batchyard.recipes import EndedItem
from jobs.finishing import journal
from jobs.intake.rows import tables
from jobs.stage_records import StageRecords
from store.artifacts import Artifacts, ArtifactWriter
from store.formats import items as items_file
from store.formats import job_chunks
from store.formats.results import ResultRow
from store.intake import outputs
from store.intake.outputs import Destination
from store.jobs import lifecycle
from store.records import Job, JobReply
from tasks.context import AppContext
from tasks.steps.step import EarlierBatch


@dataclass
class JobResults:
    """The ended items of a job (batchyard.recipes.Results) in a local file, its artifacts and its report's status."""

    _context: AppContext
    job: Job
    _chunks: list[str]
    _unended: str
    _file: IO[bytes]
    _folder: Path
    artifacts: dict[str, tuple[str, int, int | None]] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=lambda: {"status": "completed"})

    @property
    def _artifacts(self) -> Artifacts:
        return self._context.artifacts

    def items(self) -> Iterator[EndedItem]:
        starts = self._index
        order = np.flatnonzero(starts[:, 1])
        for number in order.tolist():
            columns_at, columns_size, result_at, result_size = starts[number].tolist()
            custom_id, columns = json_lines.loads(self._read(columns_at, columns_size))
            end: dict[str, Any] = {"state": self._unended, "result": {"text": None}, "error": None}
            if result_size:
                end = json_lines.loads(self._read(result_at, result_size))
            yield EndedItem(number, custom_id, columns, **end)

    def tables(self) -> Iterator[pa.Table]:
        is_item = self._index[1:, 1] > 0  # rows count from 1
        first = 0
        with self._artifacts.open(self.job.input_sha256) as source:
            for table in tables(source, self.job.input_name):
                members = np.flatnonzero(is_item[first : first + table.num_rows])
                if members.size:
                    yield table if members.size == table.num_rows else table.take(pa.array(members))
                first += table.num_rows

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        with self._artifacts.create() as file:
            yield file  # type: ignore[misc]  # a writer is a file
        self.artifacts[name] = (file.sha256, file.size, None)

    def of_child(self, job_id: str, name: str) -> Path | None:
        """Copy an artifact of a job of the project; None without one."""
        path = self._folder / f"{job_id}-{name}"
        if not path.exists():
            with self._context.database.read() as session:
                file = lifecycle.find_artifact(session, self.job.project_id, job_id, name)
            if file is None:
                return None
            with self._artifacts.open(file.sha256) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
        return path

    def add_journal(
        self, stages: Sequence[StageRecords], judgements: Sequence[str], item_replies: Sequence[JobReply]
    ) -> None:
        numbers = items_file.Reader(self._artifacts, self.job.items_sha256 or "").numbers()
        with self._artifacts.create() as file:
            rows = journal.write(file, self._artifacts, numbers, stages, judgements, item_replies)
        self.artifacts[journal.NAME] = (file.sha256, file.size, rows)

    def _read(self, start: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, start)

    def _put(self, value: Any) -> tuple[int, int]:
        """Append a value to the file. Return its place and size."""
        return self._file.tell(), self._file.write(json_lines.dumps(value))

    @cached_property
    def _index(self) -> npt.NDArray[np.int64]:
        """Copy items and results to the file. Return their places by number."""
        reader = items_file.Reader(self._artifacts, self.job.items_sha256 or "")
        rows = int(reader.numbers().max()) + 1 if reader.total else 0
        starts = np.zeros((rows, 4), np.int64)
        for row in reader:
            starts[row.number, :2] = self._put([row.custom_id, row.columns])
        for sha256 in self._chunks:
            for row in job_chunks.read(self._artifacts, sha256).to_pylist():
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
                starts[row["number"], 2:] = self._put(ended)
        self._file.flush()
        return starts


@dataclass
class StepResults:
    """The items of a job as post-processing steps see them (tasks.steps.step.Results)."""

    _artifacts: Artifacts
    _results: JobResults

    def rows(self) -> Iterator[ResultRow]:
        """Stream a row for each item: columns as body, text as answer."""
        for item in self._results.items():
            text = item.result.get("text")
            completed = item.state == "completed"
            yield ResultRow(
                line=item.number,
                custom_id=item.custom_id,
                body=dict(item.columns),
                status_code=200 if completed else None,
                response={"choices": [{"message": {"content": text}}]} if completed and text is not None else None,
                error=None if completed else dict(item.error or {"code": item.state, "message": None}),
            )

    def create(self) -> ArtifactWriter:
        return self._artifacts.create()

    def output(self, url: str, columns: Mapping[str, str]) -> Destination:
        databases = self._results._context.settings.output_database_urls
        return outputs.output(url, self._results.job, databases, columns)

    def earlier(self, batch_id: str) -> EarlierBatch:
        raise RequestError("a job's results are no answers of one model: verify its batches")

    def add(self, name: str, sha256: str, size: int, lines: int | None = None) -> None:
        if name in self._results.artifacts:
            raise ValueError(f"the job has an artifact {name!r} already")
        self._results.artifacts[name] = (sha256, size, lines)
