"""A list of the items of a job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchyard.statuses import ITEM_STATES
from jobs.items import texts
from jobs.items.requests import asking
from jobs.items.states import ItemRow, ItemStates
from results.storage import Storage
from store.jobs import reading as records
from store.records import Job


def page(
    storage: Storage,
    job: Job,
    *,
    state: str | None,
    custom_id: str | None,
    after: int | None,
    limit: int,
) -> tuple[list[ItemRow], bool]:
    """Return at most `limit` items after number `after`, by number, and True if there are more.

    Args:
        state, custom_id: only the items with these.

    Raises:
        ConflictError: the job ended so long ago that only its artifacts have them.
    """
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
    _add_stages(storage, job, positions[:limit], rows)
    ended = known.rows(positions[:limit], ["result"])
    by_position = dict(zip(positions, rows, strict=False))
    for position in sorted(by_position):  # as the items file has them
        shown = texts.of(job, known.reader, position, ended.get(position, {}).get("result"))
        item = by_position[position]
        item.question, item.answer, item.scores = shown
    return rows, len(positions) > limit


def _add_stages(storage: Storage, job: Job, positions: Sequence[int], rows: Sequence[ItemRow]) -> None:
    """Say of live items in which stage they wait for an answer."""
    live = {position: item for position, item in zip(positions, rows, strict=True) if item.state == "live"}
    if not live:
        return
    with storage.database.read() as session:
        groups = records.plan_groups(session, job.id, unfinished=True)
    for group in groups:
        asking_positions = asking(storage.artifacts, group.plan_sha256, group.row_group)
        for position in live.keys() & set(asking_positions.tolist()):
            live[position].stage = group.stage
