"""Reading a job: its ended items as they are kept, a list of its items, and one item with all that it has asked.

What a segment or a chunk holds is in files, by position of the item. Only the columns that are needed are read.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from batchyard.errors import ArtifactMissing, ConflictError, NotFoundError, RequestError
from batchyard.statuses import ITEM_STATES, TERMINAL
from store.artifacts import Artifacts
from store.formats import asks, chunks, job_chunks
from store.formats.items import Reader
from store.jobs import reading as records
from store.jobs import replies
from store.jobs.reading import Chunk, PlanGroup
from store.records import Job
from tasks.context import AppContext
from tasks.jobs.finishing.item_events import events_of
from tasks.jobs.finishing.results import NEVER_ENDED, EndedItem

_REASONS = {"waiting_for_verdict": ("result", "gate"), "failed": ("error", "code"), "stuck": ("error", "code")}
"""Where a result row says why an item is in its state."""
SLACK_SECONDS = 60.0
"""A chunk is stored so long after what stands in it, at the latest; and clocks of machines differ."""
_CACHED_CHUNKS = 8192
# Lines of results, and their bytes, that are read for a page of items that are sometimes right.
MIXED_ROWS, MIXED_BYTES = 2000, 16 * 1024 * 1024
_SLICE_ROWS = 32


@dataclass
class ItemRow:
    """An item in a list; see the attributes of `webapp.job_wire.ItemObject`."""

    number: int
    custom_id: str
    state: str
    life: int = 1
    turn: int | None = None
    stage: str | None = None
    reason: str | None = None


class MixedItem(NamedTuple):
    """An item that is sometimes right, with the scores of its samples."""

    number: int
    custom_id: str
    scores: list[float]


@dataclass(frozen=True)
class Place:
    """Where an item is: its state, and the life and the turns in which it has come there. `result` is empty before."""

    number: int
    position: int
    custom_id: str
    state: str
    life: int
    turns: int
    result: dict[str, Any]
    started_at: float | None

    @property
    def key(self) -> tuple[int, int, int]:
        """What a reply to it belongs to: position, life and turn."""
        return self.position, self.life, self.turns


@dataclass
class RequestRow:
    """A request of an item, and the core's answer to it if there is one."""

    custom_id: str
    stage: str
    batch_id: str
    visit: int
    sample: int
    retry: int
    body: dict[str, Any]
    status_code: int | None = None
    response: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    seconds: float | None = None


@dataclass
class Judgement:
    """An outcome that no batch keeps."""

    index: int
    kind: str
    value: Any


@dataclass
class Turn:
    """What an item wanted at one time, and what it got."""

    life: int
    turn: int
    requests: list[RequestRow] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)


@dataclass
class ReplyRow:
    """What a person or a CI has said to an item."""

    life: int
    turn: int
    kind: str
    body: dict[str, Any]
    created_at: int


@dataclass
class ItemDetails(ItemRow):
    """An item with all that has happened to it. `previous` and `next` are the numbers of the items beside it."""

    columns: dict[str, Any] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    replies: list[ReplyRow] = field(default_factory=list)
    waits_for: dict[str, Any] | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    previous: int | None = None
    next: int | None = None


def results(context: AppContext, job: Job, after: int, limit: int | None) -> Iterator[bytes]:
    """Return a line of JSON for each ended item after the first `after` lines, at most `limit`, in pieces.

    Chunks are only ever added, so the same `after` always means the same line.

    Raises:
        RequestError: there are fewer than `after` lines.
        ConflictError: the job ended so long ago that only its artifacts have the results.
    """
    return _read(context, job, after, limit, lambda number, row: _line(row))


def item_events(context: AppContext, job: Job, after: int, limit: int | None) -> Iterator[bytes]:
    """Return the events of each item that `results` has a line for, a line of JSON each, in pieces.

    `sequence` is the number of the item's line in `results`, from 1: that of the last line, as `after`, reads on.

    Raises:
        RequestError: as `results`; or the job's recipe is not there any more.
        ConflictError: as `results`.
    """
    recipe = context.recipes.recipe(job.recipe)
    options = recipe.options.model_validate(job.options)

    def told(number: int, row: dict[str, Any]) -> bytes:
        if row["state"] in job_chunks.UNENDED:
            return b""
        made = events_of(recipe, options, EndedItem.of(row))
        return b"".join(orjson.dumps({"sequence": number} | dict(event)) + b"\n" for event in made)

    return _read(context, job, after, limit, told)


def _read(
    context: AppContext, job: Job, after: int, limit: int | None, line: Callable[[int, dict[str, Any]], bytes]
) -> Iterator[bytes]:
    stored = _result_chunks(context, job)
    available = sum(chunk.rows for chunk in stored)
    if after > available:
        raise RequestError(f"Invalid 'after': there are {available} lines so far.", code="invalid_value", param="after")
    stop = available if limit is None else min(after + limit, available)
    return _lines(context.artifacts, stored, after, stop, line)


def _result_chunks(context: AppContext, job: Job) -> list[Chunk]:
    with context.database.read() as session:
        stored = records.chunks(session, job.id, "result")
    if job.status in TERMINAL and not stored and job.completed + job.failed + job.stuck:
        raise _collected(job)
    return stored


def _collected(job: Job) -> ConflictError:
    return ConflictError(
        f"Job '{job.id}' has ended, and its results are in its artifacts now.", code="results_in_files", param="job_id"
    )


def _lines(
    artifacts: Artifacts,
    stored: Sequence[Chunk],
    start: int,
    stop: int,
    line: Callable[[int, dict[str, Any]], bytes],
) -> Iterator[bytes]:
    first = 0
    for chunk in stored:
        begin, end = max(start - first, 0), min(stop - first, chunk.rows)
        if begin < end:
            rows = job_chunks.read(artifacts, chunk.sha256).slice(begin, end - begin)
            numbered = enumerate(rows.drop_columns("position").to_pylist(), first + begin + 1)
            yield b"".join(line(number, row) for number, row in numbered)
        first += chunk.rows


def _line(row: dict[str, Any]) -> bytes:
    for name in ("result", "error"):
        if row[name] is not None:
            row[name] = orjson.Fragment(row[name])
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


class _Ends(NamedTuple):
    """A result chunk without its texts. `states` are indices of ITEM_STATES."""

    positions: npt.NDArray[np.int64]
    states: npt.NDArray[np.int8]
    lives: npt.NDArray[np.int32]
    turns: npt.NDArray[np.int32]


@functools.lru_cache(maxsize=_CACHED_CHUNKS)
def _ends(artifacts: Artifacts, sha256: str) -> _Ends:
    table = job_chunks.read(artifacts, sha256, ["position", "state", "life", "turns"])
    states = pc.index_in(table["state"], value_set=pa.array(ITEM_STATES)).to_numpy().astype(np.int8)
    return _Ends(table["position"].to_numpy(), states, table["life"].to_numpy(), table["turns"].to_numpy())


@functools.lru_cache(maxsize=_CACHED_CHUNKS)
def _judged(artifacts: Artifacts, sha256: str) -> npt.NDArray[np.int32]:
    """Return the position of each row of a judgement chunk."""
    return _positions(job_chunks.read(artifacts, sha256, ["position"]))


@functools.lru_cache(maxsize=_CACHED_CHUNKS)
def _asking(artifacts: Artifacts, plan_sha256: str, row_group: int) -> npt.NDArray[np.int32]:
    """Return the position of the item of each request of a segment."""
    return _positions(asks.read(artifacts, plan_sha256, row_group, ["position"]))


def _positions(table: pa.Table) -> npt.NDArray[np.int32]:
    positions: npt.NDArray[np.int32] = table["position"].to_numpy().astype(np.int32)
    return positions


class _Items:
    """The states of all items of a job, by position.

    Attributes:
        numbers: of each item, its row of the input.
        states: of each item, an index of ITEM_STATES.
    """

    def __init__(self, context: AppContext, job: Job) -> None:
        """Raises ConflictError if the job ended so long ago that they are gone, UnavailableError."""
        self._artifacts = context.artifacts
        self._stored = _result_chunks(context, job)
        assert job.items_sha256 is not None
        try:
            self.reader = Reader(context.artifacts, job.items_sha256)
        except ArtifactMissing:
            if job.status in TERMINAL:
                raise _collected(job) from None
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
        """Return columns of the newest result row of each of these items that has one. Each chunk is read once."""
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
            reason = orjson.loads(row[column] or "{}").get(key)
        turns = int(self.turns[position])
        return ItemRow(
            number=int(self.numbers[position]),
            custom_id=custom_id,
            state=state,
            life=int(self.lives[position]),
            turn=turns if turns >= 0 and state not in ("live", "pending") else None,
            reason=reason,
        )


def items(
    context: AppContext,
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
    known = _Items(context, job)
    wanted = np.ones(len(known.numbers), bool) if state is None else known.states == ITEM_STATES.index(state)
    if after is not None:
        wanted &= known.numbers > after
    if custom_id is not None:
        wanted &= np.isin(np.arange(len(wanted)), known.reader.find(custom_id))
    positions = np.flatnonzero(wanted)
    positions = positions[np.argsort(known.numbers[positions])].tolist()
    page = known.listed(positions[:limit])
    _add_stages(context, job, positions[:limit], page)
    return page, len(positions) > limit


def select(context: AppContext, job: Job, states: Collection[str]) -> tuple[Reader, npt.NDArray[np.int64]]:
    """Return the items of an ended job, and the rising positions of those that are in one of these states.

    Raises:
        ConflictError: the job ended so long ago that only its artifacts have them.
    """
    known = _Items(context, job)
    return known.reader, np.flatnonzero(np.isin(known.states, [ITEM_STATES.index(state) for state in states]))


def mixed(context: AppContext, job: Job, after: int, limit: int) -> tuple[list[MixedItem], int | None]:
    """Return at most `limit` completed items whose samples have different scores, after the first `after` lines of
    `results`, and the number of lines read or None if these were all.

    At most MIXED_ROWS lines, or a little more than MIXED_BYTES, are read at a time.

    Raises:
        ConflictError: the job ended so long ago that only its artifacts have them.
    """
    stored = _result_chunks(context, job)
    end = sum(chunk.rows for chunk in stored)
    stop = min(after + MIXED_ROWS, end)
    page: list[MixedItem] = []
    remaining = MIXED_BYTES
    for line, row in enumerate(_ended(context.artifacts, stored, after, stop), after + 1):
        scores = _scores(row["result"]) if row["state"] == "completed" else []
        if len(set(scores)) > 1:
            page.append(MixedItem(row["number"], row["custom_id"], scores))
        remaining -= len(row["result"] or "")
        if len(page) == limit or remaining <= 0:
            return page, line if line < end else None
    return page, stop if stop < end else None


def _ended(artifacts: Artifacts, stored: Sequence[Chunk], start: int, stop: int) -> Iterator[dict[str, Any]]:
    first = 0
    for chunk in stored:
        begin, end = max(start - first, 0), min(stop - first, chunk.rows)
        if begin < end:
            table = job_chunks.read(artifacts, chunk.sha256, ["number", "custom_id", "state", "result"])
            for at in range(begin, end, _SLICE_ROWS):
                yield from table.slice(at, min(_SLICE_ROWS, end - at)).to_pylist()
        first += chunk.rows


def _scores(result: str | None) -> list[float]:
    """Return the scores of the samples in an item's result, none if it has no samples."""
    values = orjson.loads(result) if result else None
    samples = values.get("samples") if isinstance(values, dict) else None
    scores = [sample.get("score") for sample in samples or () if isinstance(sample, dict)]
    return [float(score) for score in scores if isinstance(score, int | float)]


def _add_stages(context: AppContext, job: Job, positions: Sequence[int], page: Sequence[ItemRow]) -> None:
    """Say of live items in which stage they wait for an answer."""
    live = {position: item for position, item in zip(positions, page, strict=True) if item.state == "live"}
    if not live:
        return
    with context.database.read() as session:
        groups = records.plans(session, job.id, unfinished=True)
    for group in groups:
        asking = _asking(context.artifacts, group.plan_sha256, group.row_group)
        for position in live.keys() & set(asking.tolist()):
            live[position].stage = group.stage


def item(context: AppContext, job: Job, number: int) -> ItemDetails:
    """Return an item with all that it has asked and got.

    Raises:
        NotFoundError: the job has no such item.
        ConflictError: the job ended so long ago that only its artifacts have it.
    """
    known, position = _find(context, job, number)
    (row,) = known.reader.read(position, 1)
    end = known.rows([position], ["result", "error", "started_at", "ended_at"]).get(position)
    details = ItemDetails(**vars(known.item(position, row.custom_id, end)), columns=row.columns)
    before, after = known.numbers[known.numbers < number], known.numbers[known.numbers > number]
    details.previous = int(before.max()) if before.size else None
    details.next = int(after.min()) if after.size else None
    if end is not None:
        value = orjson.loads(end["result"]) if end["result"] else None
        if details.state == "waiting_for_verdict":
            details.waits_for = value
        elif end["ended_at"] is not None:
            details.result = value
        details.error = orjson.loads(end["error"]) if end["error"] else None
        details.started_at, details.ended_at = end["started_at"], end["ended_at"]
    details.turns = _turns(context, job, position, details)
    with context.database.read() as session:
        details.replies = [
            ReplyRow(reply.life, reply.turn, reply.kind, reply.body, reply.created_at)
            for reply in replies.of_item(session, job.id, position)
        ]
    if details.state == "live":
        details.life = max([details.life, *(turn.life for turn in details.turns)])
        unanswered = [request.stage for turn in details.turns for request in turn.requests if _open(request)]
        details.stage = unanswered[-1] if unanswered else None
    return details


def place(context: AppContext, job: Job, number: int) -> Place:
    """Return where an item is. Raises as `item`."""
    known, position = _find(context, job, number)
    row = known.rows([position], ["result", "started_at"]).get(position, {})
    return Place(
        number=number,
        position=position,
        custom_id=known.reader.custom_ids([position])[position],
        state=ITEM_STATES[known.states[position]],
        life=int(known.lives[position]),
        turns=max(int(known.turns[position]), 0),
        result=orjson.loads(row.get("result") or "{}"),
        started_at=row.get("started_at"),
    )


def _find(context: AppContext, job: Job, number: int) -> tuple[_Items, int]:
    """Return the items of a job, and the position of one. Raises as `item`."""
    if job.total:
        known = _Items(context, job)
        positions = np.flatnonzero(known.numbers == min(number, 2**63 - 1))
        if positions.size:
            return known, int(positions[0])
    raise NotFoundError(f"Job '{job.id}' has no item {number}.", param="number")


def _open(request: RequestRow) -> bool:
    return request.status_code is None and request.error is None


def _turns(context: AppContext, job: Job, position: int, end: ItemDetails) -> list[Turn]:
    """Return the turns of an item.

    The turns of requests whose plan file does not have them are numbered by what is left, by stage and visit: each
    begins with the request of sample 0.
    """
    turns: dict[tuple[int, int], Turn] = {}
    refused: set[tuple[int, int]] = set()
    for life, number, judgement in _judgements(context, job, position, end):
        turns.setdefault((life, number), Turn(life, number)).judgements.append(judgement)
        if judgement.kind == "refused":
            refused.add((life, number))
    by_visit: dict[tuple[int, int, int], list[RequestRow]] = {}
    for life, known, stage, request in _requests(context, job, position):
        if known is None:
            by_visit.setdefault((life, stage, request.visit), []).append(request)
        else:
            turns.setdefault((life, known), Turn(life, known)).requests.append(request)
    for turn in turns.values():
        turn.requests.sort(key=lambda request: (request.sample, request.retry))
    taken = turns.keys() - refused
    current: Turn | None = None
    for (life, _, _), requests in sorted(by_visit.items()):
        requests.sort(key=lambda request: (request.sample, request.retry))
        if current is None or current.life != life or requests[0].sample == 0:
            number = 1 if current is None or current.life != life else current.turn + 1
            while (life, number) in taken:
                number += 1
            current = turns.setdefault((life, number), Turn(life, number))
        current.requests += requests
    return [turns[key] for key in sorted(turns)]


def _judgements(context: AppContext, job: Job, position: int, end: ItemDetails) -> Iterator[tuple[int, int, Judgement]]:
    """Yield life, turn and outcome of each judgement of an item."""
    until = None if end.ended_at is None else end.ended_at + SLACK_SECONDS
    since = None if end.started_at is None or end.life > 1 else end.started_at - SLACK_SECONDS
    with context.database.read() as session:
        stored = records.chunks(session, job.id, "judgement", since=since, until=until)
    for chunk in stored:
        places = _judged(context.artifacts, chunk.sha256) == position
        if places.any():
            for row in job_chunks.read(context.artifacts, chunk.sha256).filter(pa.array(places)).to_pylist():
                if row["kind"] in (job_chunks.HANGS, job_chunks.RECIPE):
                    continue
                yield row["life"], row["turn"], Judgement(row["index"], row["kind"], orjson.loads(row["value"]))


def _requests(context: AppContext, job: Job, position: int) -> Iterator[tuple[int, int | None, int, RequestRow]]:
    """Yield life, turn (None if it is not known), number of the stage, and each request of an item with its answer."""
    with context.database.read() as session:
        groups = records.plans(session, job.id)
    for group in groups:
        if position not in _asking(context.artifacts, group.plan_sha256, group.row_group):
            continue
        table = asks.read_item(context.artifacts, group.plan_sha256, group.row_group, position)
        answers = _answers(context, group, table["line"])
        for row in table.to_pylist():
            request = RequestRow(
                custom_id=row["custom_id"],
                stage=group.stage,
                batch_id=group.batch_id,
                visit=row["visit"],
                sample=row["sample"],
                retry=row["retry"],
                body=orjson.loads(row["body"]) if row["body"] else {},
            )
            answer, request.seconds = answers.get(row["line"], (None, None))
            if answer is not None:
                line = orjson.loads(answer)
                response = line.get("response") or {}
                request.status_code, request.response = response.get("status_code"), response.get("body")
                request.error = line.get("error")
            yield row["life"], row["turn"], group.number, request


def _answers(context: AppContext, group: PlanGroup, lines: pa.ChunkedArray) -> dict[int, tuple[str, float | None]]:
    """Return the output lines, and seconds, of these lines of a segment."""
    with context.database.read() as session:
        stored = records.answer_chunks(session, group.segment_id)
    answers: dict[int, tuple[str, float | None]] = {}
    for sha256 in stored:
        for table in chunks.read(context.artifacts, sha256, ["line", "answer", "seconds"]):
            for row in table.filter(pc.is_in(table["line"], value_set=lines.combine_chunks())).to_pylist():
                answers[row["line"]] = row["answer"], row["seconds"]
        if len(answers) == len(lines):
            break
    return answers
