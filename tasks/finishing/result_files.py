"""Result files: merges a batch's result chunks into output and error files in input order; and input files of jobs.

Result chunks come in any order. Their answers go through a spool (tasks.finishing.spool), so memory holds few of them
at once, and for each line of the batch about 120 bytes and its custom_id.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import orjson
import pyarrow as pa

from batchyard import json_lines
from batchyard.endpoints import output_lines
from batchyard.errors import ArtifactMissing, BatchyardError
from store.artifacts import Artifacts, ArtifactWriter
from store.formats import plan
from store.formats import rows as rows_file
from store.formats import seconds as seconds_file
from store.formats.chunks import read as read_chunk
from tasks.finishing import spool
from tasks.finishing.spool import Numbers, Spool

log = logging.getLogger(__name__)

INPUT = "input.jsonl"
INPUT_ROWS = 1000
QUOTED_LINES = 10
"""Most line numbers that an error message names."""


@dataclass(frozen=True)
class Merged:
    """Numbers of written lines: answers, failed requests, requests that were never run."""

    completed: int
    failed: int
    never_run: int


class _Answers:
    """The answers of a batch as they arrived: lines in a spool, and facts about each."""

    def __init__(self, lines: Spool) -> None:
        self._spool = lines
        self._oks = [np.zeros(0, np.bool_)]
        self._seconds = [np.zeros(0)]
        self._codes = [pa.array([], pa.string())]

    def add(self, table: pa.Table) -> None:
        """Add answers: the columns of a result chunk."""
        for batch in table.to_batches():
            self._spool.add(batch["line"].to_numpy(), batch["answer"])
            self._oks.append(batch["ok"].to_numpy(zero_copy_only=False))
            self._seconds.append(batch["seconds"].to_numpy(zero_copy_only=False))
            self._codes.append(_codes(batch))

    def lines(self) -> Numbers:
        """Return the line of each answer, in order of arrival."""
        return self._spool.lines()

    def write_seconds(self, file: ArtifactWriter) -> None:
        seconds_file.write(file, self.lines(), np.concatenate(self._seconds))

    def write_rows(self, file: ArtifactWriter, requests: pa.Table, source: IO[bytes]) -> None:
        """Write what became of each request and where its lines are (store.formats.rows). `source`: the input."""
        order = np.argsort(self.lines())
        oks, sizes = np.concatenate(self._oks)[order], self._spool.sizes()[order] + 1  # each with its line feed
        places = np.zeros(order.size, np.int64)
        for ok in (True, False):
            line_sizes = sizes[oks == ok]
            places[oks == ok] = np.cumsum(line_sizes) - line_sizes
        requests = requests.sort_by("line")
        codes = pa.chunked_array(self._codes).take(pa.array(order))
        begins = rows_file.starts(source)[requests["line"].to_numpy() - 1]
        columns = [requests["line"], requests["custom_id"], pa.array(oks), codes, pa.array(begins), pa.array(places)]
        rows_file.write(file, pa.Table.from_arrays(columns, schema=rows_file.SCHEMA))

    def write(self, ok: bool, file: ArtifactWriter) -> int:
        """Write the answers of requests that completed, or of those that failed, in input order; return how many."""
        return self._spool.write(file, np.concatenate(self._oks) == ok)


def merge(
    artifacts: Artifacts,
    plans: Sequence[tuple[str, int]],
    chunks: Iterable[str],
    never_run: tuple[str, str] | None,
    input_sha256: str,
    output: ArtifactWriter,
    errors: ArtifactWriter,
    seconds: ArtifactWriter,
    rows: ArtifactWriter,
) -> Merged:
    """Write every line of a batch once: answers with status 200 to `output`, all others to `errors`.

    The seconds of each line go to `seconds` (store.formats.seconds), what became of it to `rows` (store.formats.rows);
    to none if the input is lost or damaged. `plans` list the lines. `never_run` is the code and the message for those
    without an answer; None if every line must have one. Raises UnavailableError; BatchyardError: a line lacks its one
    answer. Then nothing may be published.
    """
    with spool.opened() as lines:
        answers = _Answers(lines)
        for sha256 in chunks:
            for table in read_chunk(artifacts, sha256):
                answers.add(table)
        requests = pa.concat_tables([_NO_REQUESTS, *plan.requests(artifacts, plans)])
        planned = requests["line"].to_numpy()
        unanswered = _unanswered(planned, answers.lines(), complete=never_run is None)
        answers.write_seconds(seconds)
        if never_run is not None and unanswered.size:
            for table in plan.requests(artifacts, plans):
                answers.add(_error_lines(table.filter(pa.array(np.isin(table["line"], unanswered))), *never_run))
        try:
            with artifacts.open(input_sha256) as source:
                answers.write_rows(rows, requests, source)
        except ArtifactMissing as error:  # the answers are not lost
            log.warning("merged without its input: %s", error)
        completed = answers.write(True, output)
        failed = answers.write(False, errors) - unanswered.size
    return Merged(completed, failed, unanswered.size)


_NO_REQUESTS = pa.Table.from_batches([], pa.schema([("line", pa.int64()), ("custom_id", pa.string())]))


def _codes(answers: pa.RecordBatch) -> pa.StringArray:
    """Return the code of each answer that is an error, null for the others."""
    codes: list[str | None] = [None] * answers.num_rows
    for row in np.flatnonzero(~answers["ok"].to_numpy(zero_copy_only=False)):
        codes[row] = rows_file.code(json_lines.loads(answers["answer"][row].as_py()))
    return pa.array(codes, pa.string())


def _unanswered(planned: Numbers, answered: Numbers, *, complete: bool) -> Numbers:
    """Return planned lines without an answer. Raises BatchyardError for any that should not be so, or has two."""
    lines, times = np.unique(answered, return_counts=True)
    unanswered = np.setdiff1d(planned, lines)
    faults = {
        "lines with two answers": lines[times > 1],
        "lines that no request has": np.setdiff1d(lines, planned),
        "lines without an answer": unanswered if complete else unanswered[:0],
    }
    named = [f"{fault}: {_quoted(numbers)}" for fault, numbers in faults.items() if numbers.size]
    if named:
        raise BatchyardError(f"{planned.size} requests have {answered.size} answers; {'; '.join(named)}")
    return unanswered


def _quoted(numbers: Numbers) -> str:
    more = f" and {numbers.size - QUOTED_LINES} more" if numbers.size > QUOTED_LINES else ""
    return ", ".join(map(str, numbers[:QUOTED_LINES].tolist())) + more


def _error_lines(requests: pa.Table, code: str, message: str) -> pa.Table:
    answers = output_lines.unanswered(requests["line"].to_pylist(), requests["custom_id"].to_pylist(), code, message)
    oks = pa.array([False] * len(answers), pa.bool_())
    seconds = pa.nulls(len(answers), pa.float64())
    return pa.table({"line": requests["line"], "ok": oks, "answer": pa.array(answers, pa.string()), "seconds": seconds})


def write_input(artifacts: Artifacts, plans: Sequence[tuple[str, int]], endpoint: str, file: ArtifactWriter) -> None:
    """Write the requests of a batch as a client would have uploaded them, by line. Raises UnavailableError."""
    with spool.opened() as lines:
        for table in requests(artifacts, plans):
            texts = [
                json_lines.line(
                    {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": orjson.Fragment(body)}
                ).rstrip()
                for custom_id, body in zip(table["custom_id"].to_pylist(), table["body"].to_pylist(), strict=True)
            ]
            lines.add(table["line"].to_numpy(), pa.array(texts, pa.string()))
        lines.write(file)


def requests(artifacts: Artifacts, plans: Sequence[tuple[str, int]]) -> Iterator[pa.Table]:
    """Yield line, custom_id and body of each request, INPUT_ROWS at a time. Raises UnavailableError."""
    for table in plan.requests(artifacts, plans, ["line", "custom_id", "body", "same_as"]):
        body_rows = plan.body_rows(table)
        for start in range(0, table.num_rows, INPUT_ROWS):
            part = table.select(["line", "custom_id"]).slice(start, INPUT_ROWS)
            yield part.append_column("body", table["body"].take(body_rows.slice(start, INPUT_ROWS)))
