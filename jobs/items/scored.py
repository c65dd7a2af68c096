"""The items of a job by the scores of their samples: those that are sometimes right, those that are wrong."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from batchyard import json_lines
from batchyard.recipes import is_wrong
from jobs.items import texts
from jobs.items.stream import result_chunks, slices
from results.storage import Storage
from store.formats.items import Reader
from store.records import Job

# Lines of results, and their bytes, that are read for a page.
SCORED_ROWS, SCORED_BYTES = 2000, 16 * 1024 * 1024
_SLICE_ROWS = 32
_COLUMNS = ("number", "position", "custom_id", "state", "result")


Kind: TypeAlias = Literal["sometimes_right", "wrong"]
"""`sometimes_right`: completed, and its samples have different scores; `wrong`: a sample is not right."""
SOMETIMES_RIGHT: Kind = "sometimes_right"
WRONG: Kind = "wrong"


class ScoredItem(NamedTuple):
    """An item with the scores of its samples."""

    number: int
    custom_id: str
    question: str | None
    answer: str | None
    scores: list[float]


def page(storage: Storage, job: Job, kind: Kind, after: int, limit: int) -> tuple[list[ScoredItem], int | None]:
    """Return at most `limit` items of a kind after the first `after` lines of `stream.lines`.

    Beside them stands the number of lines read, or None if these were all.

    At most SCORED_ROWS lines, or a little more than SCORED_BYTES, are read at a time.

    Raises:
        ConflictError: the job ended so long ago that only its artifacts have them.
    """
    stored = result_chunks(storage, job)
    assert job.items_sha256 is not None
    reader = Reader(storage.artifacts, job.items_sha256)
    end = sum(chunk.rows for chunk in stored)
    stop = min(after + SCORED_ROWS, end)
    items: list[ScoredItem] = []
    remaining = SCORED_BYTES
    rows = (
        row
        for _, table in slices(storage.artifacts, stored, after, stop, _COLUMNS)
        for at in range(0, table.num_rows, _SLICE_ROWS)
        for row in table.slice(at, _SLICE_ROWS).to_pylist()
    )
    for line, row in enumerate(rows, after + 1):
        samples = texts.samples(json_lines.loads(row["result"]) if row["result"] else None)
        differ = row["state"] == "completed" and len({sample["score"] for sample in samples}) > 1
        if any(map(is_wrong, samples)) if kind == WRONG else differ:
            items.append(
                ScoredItem(row["number"], row["custom_id"], *texts.of(job, reader, row["position"], row["result"]))
            )
        remaining -= len(row["result"] or "")
        if len(items) == limit or remaining <= 0:
            return items, line if line < end else None
    return items, stop if stop < end else None
