"""Lists of the items of a job: of all, or of those whose samples are sometimes right, or wrong."""

from typing import Literal, TypeAlias

import numpy as np

from batchyard import json_lines
from batchyard.recipes import is_wrong
from batchyard.statuses import ITEM_STATES
from jobs.items import texts
from jobs.items.detail import asking
from jobs.items.states import ItemRow, ItemStates
from jobs.items.stream import result_chunks, slices
from results.storage import Storage
from store.formats.items import Reader
from store.jobs import reading as records
from store.records import Job

# Lines of results, and their bytes, that are read for a page.
SCORED_ROWS, SCORED_BYTES = 2000, 16 * 1024 * 1024
_SLICE_ROWS = 32
_COLUMNS = ("number", "position", "custom_id", "state", "result")


Kind: TypeAlias = Literal["sometimes_right", "wrong"]
"""`sometimes_right`: completed, and its samples have different scores; `wrong`: a sample is not right."""
SOMETIMES_RIGHT: Kind = "sometimes_right"
WRONG: Kind = "wrong"


def page(
    storage: Storage,
    job: Job,
    *,
    state: str | None,
    custom_id: str | None,
    after: int | None,
    limit: int,
) -> tuple[list[ItemRow], bool]:
    """Return items after number `after`, and if more follow. Raises ConflictError if only artifacts have them."""
    if not job.total:
        return [], False
    known = ItemStates(storage, job)
    wanted = np.ones(len(known.numbers), bool) if state is None else known.states == ITEM_STATES.index(state)
    if after is not None:
        wanted &= known.numbers > after
    if custom_id is not None:
        wanted &= np.isin(np.arange(len(wanted)), known.reader.find(custom_id))
    positions = np.flatnonzero(wanted)
    positions = positions[np.argsort(known.numbers[positions])].tolist()
    rows = known.listed(positions[:limit])
    if live := {position: row for position, row in zip(positions, rows, strict=False) if row.state == "live"}:
        with storage.database.read() as session:
            groups = records.plan_groups(session, job.id, unfinished=True)
        for group in groups:
            asking_positions = asking(storage.artifacts, group.plan_sha256, group.row_group)
            for position in live.keys() & set(asking_positions.tolist()):
                live[position].stage = group.stage
    ended = known.rows(positions[:limit], ["result"])
    by_position = dict(zip(positions, rows, strict=False))
    for position in sorted(by_position):  # as the items file has them
        result = ended.get(position, {}).get("result")
        texts.fill(by_position[position], job, known.reader, position, result)
    return rows, len(positions) > limit


def scored_page(storage: Storage, job: Job, kind: Kind, after: int, limit: int) -> tuple[list[ItemRow], int | None]:
    """Return items of a kind after the first `after` result lines, and the lines read; None if these were all.

    At most SCORED_ROWS lines, or a little more than SCORED_BYTES, are read at a time. Raises ConflictError.
    """
    stored = result_chunks(storage, job)
    assert job.items_sha256 is not None
    reader = Reader(storage.artifacts, job.items_sha256)
    end = sum(chunk.rows for chunk in stored)
    stop = min(after + SCORED_ROWS, end)
    items: list[ItemRow] = []
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
            items.append(ItemRow(row["number"], row["custom_id"], row["state"]))
            texts.fill(items[-1], job, reader, row["position"], row["result"])
        remaining -= len(row["result"] or "")
        if len(items) == limit or remaining <= 0:
            return items, line if line < end else None
    return items, stop if stop < end else None
