"""The states of all items of a job, read from its result chunks by position."""

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batchyard import json_lines
from batchyard.errors import ArtifactMissing, NotFoundError
from batchyard.statuses import ITEM_STATES, NEVER_ENDED, TERMINAL
from jobs.items.stream import collected, result_chunks
from results.storage import Storage
from store.artifacts import Artifacts
from store.formats import job_chunks
from store.formats.items import Reader
from store.records import Job

_REASONS = {"waiting_for_verdict": ("result", "gate"), "failed": ("error", "code"), "stuck": ("error", "code")}
"""Where a result row says why an item is in its state."""
CACHED_CHUNKS = 8192


@dataclass
class ItemRow:
    """An item in a list; see `webapp.wire.items.ItemObject`."""

    number: int
    custom_id: str
    state: str
    life: int = 1
    turn: int | None = None
    stage: str | None = None
    reason: str | None = None
    question: str | None = None
    answer: str | None = None
    expected: str | None = None
    scores: list[float] = field(default_factory=list)


class _ChunkEnds(NamedTuple):
    """A result chunk without its texts. `states` are indices of ITEM_STATES."""

    positions: npt.NDArray[np.int64]
    states: npt.NDArray[np.int8]
    lives: npt.NDArray[np.int32]
    turns: npt.NDArray[np.int32]


@functools.lru_cache(maxsize=CACHED_CHUNKS)
def _ends(artifacts: Artifacts, sha256: str) -> _ChunkEnds:
    table = job_chunks.read(artifacts, sha256, ["position", "state", "life", "turns"])
    states = pc.index_in(table["state"], value_set=pa.array(ITEM_STATES)).to_numpy().astype(np.int8)
    return _ChunkEnds(table["position"].to_numpy(), states, table["life"].to_numpy(), table["turns"].to_numpy())


class ItemStates:
    """The states of all items of a job, by position, as indexes of ITEM_STATES; `numbers` are rows of the input."""

    def __init__(self, storage: Storage, job: Job) -> None:
        """Raises ConflictError if the job ended so long ago that they are gone, UnavailableError."""
        self._artifacts = storage.artifacts
        self._stored = result_chunks(storage, job)
        assert job.items_sha256 is not None
        try:
            self.reader = Reader(storage.artifacts, job.items_sha256)
        except ArtifactMissing:
            if job.status in TERMINAL:
                raise collected(job) from None
            raise
        self.numbers = self.reader.numbers()
        total = self.reader.total
        self.states = np.full(total, ITEM_STATES.index("pending"), np.int8)
        self.states[: job.admitted] = ITEM_STATES.index("live")
        states = np.arange(len(ITEM_STATES), dtype=np.int8)
        if job.status in TERMINAL:
            self.states[:] = states[: ITEM_STATES.index("completed")] = ITEM_STATES.index(NEVER_ENDED[job.status])
        self.lives = np.ones(total, np.int32)
        self.turns = np.full(total, -1, np.int32)
        self._places = np.full((total, 2), -1, np.int32)
        for index, chunk in enumerate(self._stored):  # the newest row of a position counts
            ends = _ends(self._artifacts, chunk.sha256)
            self.states[ends.positions] = states[ends.states]
            self.lives[ends.positions] = ends.lives
            self.turns[ends.positions] = ends.turns
            self._places[ends.positions, 0] = index
            self._places[ends.positions, 1] = np.arange(len(ends.positions))

    def rows(self, positions: Iterable[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Return columns of the newest result rows of these items."""
        by_chunk = defaultdict[int, list[int]](list)
        for position in positions:
            by_chunk[int(self._places[position, 0])].append(position)
        by_chunk.pop(-1, None)
        rows: dict[int, dict[str, Any]] = {}
        for index, members in by_chunk.items():
            table = job_chunks.read(self._artifacts, self._stored[index].sha256, columns)
            rows |= zip(members, table.take(self._places[members, 1]).to_pylist(), strict=True)
        return rows

    def listed(self, positions: Sequence[int]) -> list[ItemRow]:
        """Return these items, without the stage that they are in."""
        custom_ids = self.reader.custom_ids(positions)
        explained = [position for position in positions if ITEM_STATES[self.states[position]] in _REASONS]
        rows = self.rows(explained, ["result", "error"])
        return [self.item(position, custom_ids[position], rows.get(position)) for position in positions]

    def item(self, position: int, custom_id: str, row: dict[str, Any] | None) -> ItemRow:
        """Return an item, without its stage. `row`: columns `result` and `error` of its newest result row, if any."""
        state, reason = ITEM_STATES[self.states[position]], None
        if row is not None and state in _REASONS:
            column, key = _REASONS[state]
            reason = json_lines.loads(row[column] or "{}").get(key)
        turns = int(self.turns[position])
        return ItemRow(
            number=int(self.numbers[position]),
            custom_id=custom_id,
            state=state,
            life=int(self.lives[position]),
            turn=turns if turns >= 0 and state not in ("live", "pending") else None,
            reason=reason,
        )


def select(storage: Storage, job: Job, states: Collection[str]) -> tuple[Reader, npt.NDArray[np.int64]]:
    """Return the items of an ended job, and the rising positions of those in these states. Raises as ItemStates."""
    known = ItemStates(storage, job)
    return known.reader, np.flatnonzero(np.isin(known.states, [ITEM_STATES.index(state) for state in states]))


def find(storage: Storage, job: Job, number: int) -> tuple[ItemStates, int]:
    """Return a job's items, and the position of one. Raises NotFoundError; ConflictError if only artifacts have it."""
    if job.total:
        known = ItemStates(storage, job)
        positions = np.flatnonzero(known.numbers == min(number, 2**63 - 1))
        if positions.size:
            return known, int(positions[0])
    raise NotFoundError(f"Job '{job.id}' has no item {number}.", param="number")
