"""Result files: merges a batch's result chunks into output and error files in input order.

Memory does not grow with the batch. Result chunks come in any order, so their lines are first distributed into buckets
by line number, on local disk. Then each bucket in turn is sorted in memory and written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchyard import output_lines
from batchyard.errors import BatchyardError
from store.artifacts import Artifacts, Writer
from store.formats import plan
from store.formats.chunks import SCHEMA as ANSWERS
from store.formats.chunks import read as read_chunk

# A bucket is held in memory. It has more lines only if the batch would need more than MAX_BUCKETS files.
BUCKET_LINES = 8192
MAX_BUCKETS = 256
REQUESTS = pa.schema([("line", pa.int64()), ("custom_id", pa.string())])


@dataclass(frozen=True)
class Merged:
    """Numbers of written lines: answers, failed requests, requests that were never run."""

    completed: int
    failed: int
    never_run: int


class _Buckets:
    """Distributes tables by line number into Arrow files, each of `width` line numbers."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema, width: int) -> None:
        self._folder = folder
        self._name = name
        self._schema = schema
        self._width = width
        self._writers: dict[int, Any] = {}

    def add(self, table: pa.Table) -> None:
        buckets = table["line"].to_numpy() // self._width
        for bucket in np.unique(buckets).tolist():
            writer = self._writers.get(bucket)
            if writer is None:
                writer = self._writers[bucket] = pa.ipc.new_file(self._path(bucket), self._schema)
            writer.write_table(table.filter(pa.array(buckets == bucket)).cast(self._schema))

    def _path(self, bucket: int) -> str:
        return str(self._folder / f"{self._name}-{bucket}")

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def read(self, bucket: int) -> pa.Table:
        """Return one bucket, sorted by line."""
        if bucket not in self._writers:
            return self._schema.empty_table()
        with pa.ipc.open_file(self._path(bucket)) as reader:
            return reader.read_all().sort_by("line")


def merge(
    artifacts: Artifacts,
    plan_sha256: str,
    chunks: Iterable[str],
    never_run: tuple[str, str] | None,
    output: Writer,
    errors: Writer,
) -> Merged:
    """Write every line of a batch once: answers with status 200 to `output`, all others to `errors`.

    Args:
        plan_sha256: the plan, which lists the lines.
        chunks: SHA-256 of each result chunk.
        never_run: code and message for lines without an answer; None if every line must have one.

    Raises:
        BatchyardError: a line has no answer though it should, or two. Then nothing may be published.
    """
    last = plan.last_line(artifacts, plan_sha256)
    width = max(BUCKET_LINES, last // MAX_BUCKETS + 1)
    completed = failed = missing = 0
    with tempfile.TemporaryDirectory(prefix="batchyard-merge-") as folder:
        answers = _Buckets(Path(folder), "answers", ANSWERS, width)
        requests = _Buckets(Path(folder), "requests", REQUESTS, width)
        for sha256 in chunks:
            answers.add(read_chunk(artifacts, sha256))
        for table in plan.requests(artifacts, plan_sha256):
            requests.add(table)
        answers.close()
        requests.close()
        for bucket in range(last // width + 1):
            expected, answered = requests.read(bucket), answers.read(bucket)
            unanswered = expected.filter(pc.invert(pc.is_in(expected["line"], answered["line"].combine_chunks())))
            if answered.num_rows + unanswered.num_rows != expected.num_rows or (
                unanswered.num_rows and never_run is None
            ):
                raise BatchyardError(
                    f"lines {bucket * width} to {(bucket + 1) * width - 1}: {expected.num_rows} requests, "
                    f"{answered.num_rows} answers, {unanswered.num_rows} requests without one"
                )
            good = answered.filter(answered["ok"])
            bad = answered.filter(pc.invert(answered["ok"])).drop_columns("ok")
            if never_run is not None and unanswered.num_rows:
                bad = pa.concat_tables([bad, _error_lines(unanswered, *never_run)]).sort_by("line")
            _write(good, output)
            _write(bad, errors)
            completed += good.num_rows
            failed += bad.num_rows - unanswered.num_rows
            missing += unanswered.num_rows
    return Merged(completed, failed, missing)


def _write(table: pa.Table, file: Writer) -> None:
    if table.num_rows:
        file.write("\n".join([*table["answer"].to_pylist(), ""]).encode())


def _error_lines(requests: pa.Table, code: str, message: str) -> pa.Table:
    """Columns `line` and `answer` for requests without an answer."""
    answers = output_lines.unanswered(requests["line"].to_pylist(), requests["custom_id"].to_pylist(), code, message)
    return pa.table({"line": requests["line"], "answer": pa.array(answers, pa.string())})
