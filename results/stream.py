"""The result stream: answered lines of a batch that runs, in the order in which they were appended."""

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa

from batchyard.errors import ConflictError, RequestError
from batchyard.statuses import TERMINAL
from results.storage import Storage
from store import segments
from store.artifacts import Artifacts
from store.formats.chunks import read as read_chunk
from store.records import Batch


def lines(
    storage: Storage, batch: Batch, after: int, limit: int | None, *, with_seconds: bool = False
) -> Iterator[bytes]:
    """Return output lines after the first `after`, at most `limit`, as JSONL in pieces of many lines.

    The same `after` always means the same line. `with_seconds` adds `{"batchyard": {"seconds": …}}` to each line.
    Raises RequestError without `after` lines; ConflictError if only the batch's files have the answers.
    """
    with storage.database.read() as session:
        chunks = segments.chunks(session, batch.id)
    available = sum(rows for _, rows in chunks)
    answered = batch.completed + batch.failed
    if batch.status in TERMINAL and available < answered:
        raise ConflictError(
            f"Batch '{batch.id}' has ended, and its answers are in its files now: output_file_id "
            f"{batch.output_file_id}, error_file_id {batch.error_file_id}.",
            code="results_in_files",
            param="batch_id",
        )
    if after > available:
        raise RequestError(f"Invalid 'after': there are {available} lines so far.", code="invalid_value", param="after")
    stop = available if limit is None else min(after + limit, available)
    columns = ["answer", "seconds"] if with_seconds else ["answer"]
    return _read(tables(storage.artifacts, chunks, after, stop, columns))


def _read(tables: Iterator[pa.Table]) -> Iterator[bytes]:
    for table in tables:
        answers = table["answer"].to_pylist()
        if "seconds" in table.column_names:
            # The lines are not parsed: they may be megabytes long.
            ends = [f',"batchyard":{json.dumps({"seconds": seconds})}}}' for seconds in table["seconds"].to_pylist()]
            answers = [answer.removesuffix("}") + end for answer, end in zip(answers, ends, strict=True)]
        yield "\n".join([*answers, ""]).encode()


def tables(
    artifacts: Artifacts, chunks: Sequence[tuple[str, int]], start: int, stop: int, columns: list[str]
) -> Iterator[pa.Table]:
    """Yield these columns (store.formats.chunks) of the answers `start` to `stop` - 1, some megabytes at a time."""
    first = 0
    for sha256, rows in chunks:
        if first + rows > start and first < stop:
            at = first
            for table in read_chunk(artifacts, sha256, columns):
                begin, end = max(start - at, 0), min(stop - at, table.num_rows)
                if begin < end:
                    yield table.slice(begin, end - begin)
                at += table.num_rows
                if at >= stop:
                    return
        first += rows
