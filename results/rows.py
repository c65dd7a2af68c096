"""Result rows: the requests of a batch with what became of each, to filter, to search, and to read one by one.

An ended batch has an artifact with the state of each request and the places of its lines (store.formats.rows). Of one
that runs, its plan and its result chunks say the same. So a filter reads no request and no answer, and a page reads
those that it shows. Only a search for a text reads what it searches, SEARCH_BYTES for a page at most.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from batchyard.errors import ArtifactMissing, NotFoundError
from batchyard.output_lines import NEVER_RUN
from batchyard.statuses import TERMINAL
from results.storage import Storage
from store import files, segments
from store.artifacts import Artifacts
from store.formats import plan
from store.formats import rows as rows_file
from store.formats import seconds as seconds_file
from store.formats.chunks import read as read_chunk
from store.formats.lines import MAX_LINE_BYTES
from store.formats.results import ResultRow, readable
from store.records import Batch

STATES = ("succeeded", "failed", "expired", "cancelled", "waiting")
"""What becomes of a request; `waiting` is not answered yet."""
SEARCH_BYTES = 16 * 1024 * 1024
"""Most bytes that one search reads, in about 0.05 s; the next page goes on. A parsed line counts PARSED times."""
PARSED = 8
PIECE = 500
SPAN_BYTES = 4 * 1024 * 1024
CACHE_BYTES = 64 * 1024 * 1024
BUILD_BYTES = 256 * 1024 * 1024
"""Largest input of which rows are made by reading it: only a batch that an older version has merged needs that."""
_NEVER_RUN = {reason[0]: outcome for outcome, reason in NEVER_RUN.items() if reason is not None}
_TEXTS = ("messages", "content", "text", "prompt", "input", "choices", "message", "error", "reasoning_content")
"""Keys of a request or a response below which texts are searched."""

Numbers = npt.NDArray[np.int64]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Filter:
    """Requests to show; an empty field excludes none. `custom_id` and `text` are contained, in any case.

    `state` is one of STATES, or `unsuccessful`: failed, expired or cancelled.
    """

    state: str = ""
    code: str = ""
    custom_id: str = ""
    text: str = ""


class Raw(NamedTuple):
    """A request's line and its answer's line as JSON, empty if there is none, and its seconds in the engine."""

    request: bytes
    answer: bytes
    seconds: float | None


class Entry(NamedTuple):
    """A request with its state and the code of its error."""

    row: ResultRow
    state: str
    code: str | None


class Page(NamedTuple):
    """Some of the requests that a filter leaves.

    `before` and `after` are the lines from which the pages beside it go on, None if there is none. `number` counts
    all requests that the filter leaves, None if a text is searched. `stopped` is the line at which the search stopped.
    """

    entries: list[Entry]
    before: int | None
    after: int | None
    number: int | None
    stopped: int | None


class Rows(ABC):
    """The requests of a batch. `table` has the columns line, custom_id, ok and code of rows_file.SCHEMA.

    Attributes:
        missing: what cannot be shown and why; empty if all can.
    """

    table: pa.Table
    missing: str = ""

    @abstractmethod
    def raw(self, positions: Numbers) -> list[Raw]:
        """Return the lines of the requests at these rows of `table`, which ascend. Raises UnavailableError."""

    @property
    def _lines(self) -> Numbers:
        lines: Numbers = self.table["line"].to_numpy()
        return lines

    def counts(self) -> dict[str, int]:
        """Return how many requests there are in each of STATES."""
        codes = dict(self.codes())
        counts = {outcome: codes.get(code, 0) for code, outcome in _NEVER_RUN.items()}
        counts["succeeded"] = pc.sum(self.table["ok"]).as_py() or 0
        counts["waiting"] = self.table["ok"].null_count
        counts["failed"] = self.table.num_rows - sum(counts.values())
        return {state: counts[state] for state in STATES}

    def codes(self) -> list[tuple[str, int]]:
        """Return the codes of errors with their numbers, the most frequent first."""
        counted = pc.value_counts(pc.drop_null(self.table["code"]))
        pairs = [(entry["values"], entry["counts"]) for entry in counted.to_pylist()]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))

    def positions(self, chosen: Filter) -> Numbers:
        """Return the rows that a filter leaves, whatever its `text` is."""
        ok, code = self.table["ok"], self.table["code"]
        outcomes = {outcome: code for code, outcome in _NEVER_RUN.items()}
        masks = []
        if chosen.state == "waiting":
            masks.append(pc.is_null(ok))
        elif chosen.state == "succeeded":
            masks.append(ok)
        elif chosen.state == "failed":
            masks += [pc.invert(ok), pc.invert(pc.is_in(code, value_set=pa.array(list(_NEVER_RUN))))]
        elif chosen.state == "unsuccessful":
            masks.append(pc.invert(ok))
        elif chosen.state in outcomes:
            masks.append(pc.equal(code, outcomes[chosen.state]))
        if chosen.code:
            masks.append(pc.equal(code, chosen.code))
        if chosen.custom_id:
            masks.append(pc.match_substring(self.table["custom_id"], chosen.custom_id, ignore_case=True))
        left = np.ones(self.table.num_rows, np.bool_)
        for mask in masks:
            left &= pc.fill_null(mask, False).to_numpy()
        return np.flatnonzero(left)

    def position(self, line: int) -> int:
        """Return the row of a line. Raises NotFoundError if no request stands on it."""
        places = np.flatnonzero(self._lines == line)
        if not places.size:
            raise NotFoundError(f"Line {line} of this batch has no request.", param="line")
        return int(places[0])

    def one(self, line: int) -> tuple[Entry, Raw]:
        """Return the request on a line. Raises NotFoundError."""
        position = self.position(line)
        (raw,) = self.raw(np.array([position]))
        return self.entry(position, raw), raw

    def entries(self, positions: Numbers) -> list[Entry]:
        """Return the requests at these rows, which ascend."""
        return [self.entry(int(position), raw) for position, raw in zip(positions, self.raw(positions), strict=True)]

    def entry(self, position: int, raw: Raw) -> Entry:
        """Return the request at a row of `table`, of its lines."""
        line, custom_id, ok, code = (self.table[name][position].as_py() for name in ("line", "custom_id", "ok", "code"))
        answer = orjson.loads(raw.answer) if raw.answer else {}
        row = ResultRow.of(line, custom_id, readable(raw.request)[1], answer, raw.seconds)
        state = "waiting" if ok is None else "succeeded" if ok else _NEVER_RUN.get(code, "failed")
        return Entry(row, state, code)

    def page(self, chosen: Filter, limit: int, *, after: int | None = None, before: int | None = None) -> Page:
        """Return the first `limit` requests that a filter leaves; those behind line `after` or in front of `before`.

        Raises:
            NotFoundError: there is no such line.
        """
        left = self.positions(chosen)
        number = None if chosen.text else left.size
        if after is not None:
            left = left[left > self.position(after)]
        elif before is not None:
            left = left[left < self.position(before)][::-1]
        if chosen.text:
            places, stopped_at = self._search(chosen.text, left, limit + 1)
        else:
            places, stopped_at = left[: limit + 1], None
        more = places.size > limit
        entries = self.entries(np.sort(places[:limit]))
        stopped = None if stopped_at is None else int(self._lines[stopped_at])
        backwards = before is not None
        edges = (entries[0].row.line, entries[-1].row.line) if entries else (before, after)
        onward = stopped if stopped is not None else edges[0 if backwards else 1] if more else None
        back = edges[1] if backwards else edges[0] if after is not None else None
        return Page(entries, *((onward, back) if backwards else (back, onward)), number, stopped)

    def beside(self, chosen: Filter, line: int) -> tuple[int | None, int | None]:
        """Return the lines before and behind a line among those that a filter leaves."""
        before, after = self.page(chosen, 1, before=line), self.page(chosen, 1, after=line)
        return (
            before.entries[0].row.line if before.entries else None,
            after.entries[0].row.line if after.entries else None,
        )

    def each(self, chosen: Filter) -> Iterator[tuple[Entry, Raw]]:
        """Yield every request that a filter leaves, without a limit."""
        matches = _search_for(chosen.text)
        left = self.positions(chosen)
        for start in range(0, left.size, PIECE):
            piece = left[start : start + PIECE]
            for position, raw in zip(piece.tolist(), self.raw(piece), strict=True):
                if matches is None or matches(raw)[0]:
                    yield self.entry(position, raw), raw

    def _search(self, text: str, left: Numbers, limit: int) -> tuple[Numbers, int | None]:
        """Return at most `limit` of these rows whose texts contain `text`, and the row at which the search stopped."""
        matches = _search_for(text)
        assert matches is not None
        places: list[int] = []
        budget = SEARCH_BYTES
        for start in range(0, left.size, PIECE):
            piece = left[start : start + PIECE]
            descends = piece[0] > piece[-1]
            raws = self.raw(piece[::-1])[::-1] if descends else self.raw(piece)
            for position, raw in zip(piece.tolist(), raws, strict=True):
                does_match, cost = matches(raw)
                budget -= cost
                if does_match:
                    places.append(position)
                if len(places) == limit:
                    return np.array(places, np.int64), None
                if budget <= 0 and position != left[-1]:
                    return np.array(places, np.int64), position
        return np.array(places, np.int64), None


def _search_for(text: str) -> Callable[[Raw], tuple[bool, int]] | None:
    """Return a function that says whether the texts of a request or its answer contain `text`, and what that cost.

    Only lines that contain the text as JSON are parsed. Case is ignored; in that first look in ASCII only.
    """
    if not text:
        return None
    forms = {orjson.dumps(text)[1:-1].lower(), json.dumps(text)[1:-1].encode().lower()}
    wanted = text.casefold()

    def matches(raw: Raw) -> tuple[bool, int]:
        size = len(raw.request) + len(raw.answer)
        request, answer = raw.request.lower(), raw.answer.lower()
        if not any(form in request or form in answer for form in forms):
            return False, size
        line = orjson.loads(raw.answer) if raw.answer else {}
        values = [readable(raw.request)[1], (line.get("response") or {}).get("body"), line.get("error")]
        return any(wanted in said.casefold() for said in _texts(values)), PARSED * size

    return matches


def _texts(values: Sequence[Any]) -> Iterator[str]:
    pending = list(values)  # no recursion: clients nest as deep as they like
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += [value[key] for key in _TEXTS if key in value]


@contextmanager
def opened(storage: Storage, batch: Batch) -> Iterator[Rows]:
    """Open the requests of a batch that is planned.

    Raises:
        NotFoundError: an older version has merged the batch, and its files were deleted or are too large.
        UnavailableError: the artifact store is away or has lost what is needed.
    """
    with ExitStack() as stack:
        if batch.status in TERMINAL and (batch.rows_sha256 or batch.output_file_id or batch.error_file_id):
            yield _Merged(storage, batch, stack)
        else:
            yield _Unmerged(storage, batch, stack)


def _max_line_bytes(storage: Storage) -> int:
    """Return the longest line that is shown: answers may be longer than requests."""
    return max(MAX_LINE_BYTES, storage.settings.max_line_bytes)


class _Merged(Rows):
    """The requests of a batch with an output and an error file, in input order."""

    def __init__(self, storage: Storage, batch: Batch, stack: ExitStack) -> None:
        self._max_line_bytes = _max_line_bytes(storage)
        with storage.database.read() as session:
            ids = {"input": batch.input_file_id, "output": batch.output_file_id, "error": batch.error_file_id}
            found = {name: files.find(session, batch.project_id, id_) if id_ else None for name, id_ in ids.items()}
        gone = [name for name, file in found.items() if file is None and ids[name]]
        if gone:
            self.missing = f"The {' and the '.join(gone)} file of this batch was deleted or has expired."
        shas = {name: file.sha256 for name, file in found.items() if file is not None}
        artifacts = storage.artifacts
        opened_files: dict[str, IO[bytes]] = {}
        for name, sha256 in (shas | ({"seconds": batch.seconds_sha256} if batch.seconds_sha256 else {})).items():
            try:
                opened_files[name] = stack.enter_context(artifacts.open(sha256))
            except ArtifactMissing:
                self.missing = (
                    f"The {name} file of this batch is missing in the artifact store: run the batch again, or have the "
                    "store restored from a backup."
                )
        self._source, self._output, self._errors, self._seconds = (
            opened_files.get(name) for name in ("input", "output", "error", "seconds")
        )
        if batch.rows_sha256:
            sha256 = batch.rows_sha256
            self.table = _cached((artifacts, sha256), lambda: rows_file.read(artifacts, sha256))
        else:
            self.table = self._built(artifacts, tuple(shas.get(name) for name in ids), found["input"])

    def _built(self, artifacts: Artifacts, key: Hashable, source: Any) -> pa.Table:
        if self._source is None or source.bytes > BUILD_BYTES:
            raise NotFoundError(
                self.missing
                or "An older version has ended this batch, which is too large to be shown; its files have all of it."
            )
        file = self._source
        return _cached((artifacts, key), lambda: rows_file.of_files(file, self._output, self._errors))

    def raw(self, positions: Numbers) -> list[Raw]:
        rows = self.table.select(["line", "ok", "source", "answer"]).take(pa.array(positions))
        requests = _read_lines(self._source, rows["source"].to_numpy(), self._max_line_bytes)
        oks = pc.fill_null(rows["ok"], False).to_numpy()
        places = pc.fill_null(rows["answer"], -1).to_numpy()
        answers = np.full(positions.size, b"", object)
        for ok, file in ((True, self._output), (False, self._errors)):
            members = (oks == ok) & (places >= 0)
            answers[members] = np.fromiter(
                _read_lines(file, places[members], self._max_line_bytes), object, int(members.sum())
            )
        seconds = [seconds_file.read(self._seconds, line) for line in rows["line"].to_pylist()]
        return [Raw(*fields) for fields in zip(requests, answers.tolist(), seconds, strict=True)]


def _read_lines(file: IO[bytes] | None, starts: Numbers, max_bytes: int) -> list[bytes]:
    """Return the lines that begin at these bytes, which ascend; empty ones if there is no file."""
    if file is None or not starts.size:
        return [b""] * starts.size
    first, span = int(starts[0]), int(starts[-1] - starts[0])
    if span <= SPAN_BYTES:
        file.seek(first)
        block = file.read(span) + file.readline(max_bytes)
        begins = (starts - first).tolist()
        ends = [block.find(b"\n", begin) for begin in begins]
        return [block[begin : end if end >= 0 else None] for begin, end in zip(begins, ends, strict=True)]
    lines = []
    for start in starts.tolist():
        file.seek(start)
        lines.append(file.readline(max_bytes))
    return lines


class _Unmerged(Rows):
    """The requests of a batch that runs: those with an answer in the order in which these came, then the others."""

    def __init__(self, storage: Storage, batch: Batch, stack: ExitStack) -> None:
        self._artifacts, self._batch, self._stack = storage.artifacts, batch, stack
        self._max_line_bytes = _max_line_bytes(storage)
        self._source: IO[bytes] | None = None
        with storage.database.read() as session:
            self._chunks = [sha256 for sha256, _ in segments.chunks(session, batch.id)]
            self._plans = segments.plans(session, batch.id)
        pieces = [self._planned(*place) for place in self._plans]
        requests = pa.concat_tables([_NO_REQUESTS, *pieces])
        self._segments = np.repeat(np.arange(len(pieces)), [piece.num_rows for piece in pieces])
        answered = pa.concat_tables([_NO_ANSWERS, *map(self._answered, self._chunks)])
        lines, places = requests["line"].to_numpy(), answered["line"].to_numpy()
        order = np.argsort(lines)
        mine = order[np.searchsorted(lines, places, sorter=order)] if lines.size else np.zeros(0, np.int64)
        waits = np.ones(lines.size, np.bool_)
        waits[mine] = False
        self._requests = np.concatenate([mine, order[waits[order]]])
        nulls = lines.size - places.size
        chunk_of = np.repeat(np.arange(len(self._chunks)), [self._answered(sha).num_rows for sha in self._chunks])
        self._chunk_of = chunk_of
        self.table = pa.table(
            {
                **{name: requests[name].take(pa.array(self._requests)) for name in ("line", "custom_id")},
                **{
                    name: pa.chunked_array([*answered[name].chunks, pa.nulls(nulls, answered[name].type)])
                    for name in ("ok", "code")
                },
            }
        )

    def _planned(self, plan_sha256: str, row_group: int) -> pa.Table:
        def read() -> pa.Table:
            return next(plan.requests(self._artifacts, [(plan_sha256, row_group)]))

        return _cached((self._artifacts, plan_sha256, row_group), read)

    def _answered(self, sha256: str) -> pa.Table:
        """Return line, ok and code of each answer of a chunk."""

        def read() -> pa.Table:
            table = pa.concat_tables(read_chunk(self._artifacts, sha256, ["line", "ok"]))
            codes: list[str | None] = [None] * table.num_rows
            failed = np.flatnonzero(~table["ok"].to_numpy())
            if failed.size:
                answers = pa.concat_tables(read_chunk(self._artifacts, sha256, ["answer"])).take(pa.array(failed))
                for row, answer in zip(failed.tolist(), answers["answer"].to_pylist(), strict=True):
                    codes[row] = rows_file.code(orjson.loads(answer))
            return table.append_column("code", pa.array(codes, pa.string()))

        return _cached((self._artifacts, sha256), read)

    def raw(self, positions: Numbers) -> list[Raw]:
        requests = self._read_requests(positions)
        answers: dict[int, tuple[bytes, float | None]] = {}
        answered = positions[positions < self._chunk_of.size]
        for chunk in np.unique(self._chunk_of[answered]).tolist():
            members = answered[self._chunk_of[answered] == chunk]
            table = pa.concat_tables(read_chunk(self._artifacts, self._chunks[chunk], ["answer", "seconds"]))
            first = int(np.searchsorted(self._chunk_of, chunk))
            for position, entry in zip(
                members.tolist(), table.take(pa.array(members - first)).to_pylist(), strict=True
            ):
                answers[position] = (entry["answer"].encode(), entry["seconds"])
        return [
            Raw(request, *answers.get(position, (b"", None)))
            for position, request in zip(positions.tolist(), requests, strict=True)
        ]

    def _read_requests(self, positions: Numbers) -> list[bytes]:
        if not self._batch.input_sha256:
            return self._read_planned(self._requests[positions])
        sha256 = self._batch.input_sha256
        if self._source is None:
            self._source = self._stack.enter_context(self._artifacts.open(sha256))
        source = self._source
        starts = _cached((self._artifacts, sha256), lambda: rows_file.starts(source))
        places = starts[self._lines[positions] - 1]
        order = np.argsort(places)
        lines = np.full(positions.size, b"", object)
        lines[order] = np.fromiter(_read_lines(source, places[order], self._max_line_bytes), object, positions.size)
        return lines.tolist()

    def _read_planned(self, requests: Numbers) -> list[bytes]:
        """Return requests of a job's batch, which has no input yet, as lines of it with their body only."""
        bodies: dict[int, bytes] = {}
        for segment in np.unique(self._segments[requests]).tolist():
            members = requests[self._segments[requests] == segment]
            columns = ["line", "body", "same_as"]
            table = next(plan.requests(self._artifacts, [self._plans[segment]], columns))
            rows = plan.body_rows(table).take(pa.array(members - int(np.searchsorted(self._segments, segment))))
            for request, body in zip(members.tolist(), table["body"].take(rows).to_pylist(), strict=True):
                bodies[request] = b'{"body":%s}' % body.encode()
        return [bodies[request] for request in requests.tolist()]


_NO_REQUESTS = pa.Table.from_batches([], pa.schema([("line", pa.int64()), ("custom_id", pa.string())]))
_NO_ANSWERS = pa.Table.from_batches([], pa.schema([("line", pa.int64()), ("ok", pa.bool_()), ("code", pa.string())]))


class _Cache:
    """Tables and arrays that never change, by key. Those that were used last stay, CACHE_BYTES of them."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], Value]) -> Value:
        with self._lock:
            value: Value | None = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
                return value
        value = read()
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._bytes += value.nbytes  # type: ignore[attr-defined]
            while self._bytes > CACHE_BYTES:
                self._bytes -= self._values.popitem(last=False)[1].nbytes
        return value


_cached = _Cache().get
