"""Result rows: the requests of a batch with what became of each, to filter, to search, and to read one by one.

An ended batch has an artifact with the state of each request and the places of its lines (store.formats.rows). Of one
that runs, its plan and its result chunks say the same. So only a search for a text reads texts, SEARCH_BYTES for a page
at most.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchyard import json_lines
from batchyard.errors import NotFoundError
from batchyard.json_lines import MAX_LINE_BYTES
from results.filter import GRADES, NEVER_RUN_STATES, STATES, Filter, Numbers, grade_of, select, state_of
from results.search import SEARCH_BYTES, Raw, search_for
from results.storage import Storage
from store.formats.results import ResultRow, readable

PIECE = 500
SPAN_BYTES = 4 * 1024 * 1024
"""Lines that are so near to each other are read at once."""


class Entry(NamedTuple):
    """A request with its state, the code of its error, and its grade, which is empty if its batch has no scores."""

    row: ResultRow
    state: str
    code: str | None
    grade: str = ""


class TaskGrades(NamedTuple):
    """A group of scored requests: how many there are, and how many of them were answered rightly."""

    name: str
    right: int
    number: int


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
    """The requests of a batch, in a table with columns of rows_file.SCHEMA; with scores also `task` and `correct`.

    `missing` says what cannot be shown and why; it is empty if all can.
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
        codes = dict(self.codes())
        counts = {outcome: codes.get(code, 0) for code, outcome in NEVER_RUN_STATES.items()}
        counts["succeeded"] = pc.sum(self.table["ok"]).as_py() or 0
        counts["waiting"] = self.table["ok"].null_count
        counts["failed"] = self.table.num_rows - sum(counts.values())
        return {state: counts[state] for state in STATES}

    @property
    def has_scores(self) -> bool:
        return "correct" in self.table.column_names

    def grades(self) -> dict[str, int]:
        """Return how many requests have each of GRADES, nothing if there are no scores."""
        if not self.has_scores:
            return {}
        correct = self.table["correct"]
        right = pc.sum(correct).as_py() or 0
        wrong = self.table.num_rows - correct.null_count - right
        return dict(zip(GRADES, (right, wrong, correct.null_count), strict=True))

    def tasks(self) -> list[TaskGrades]:
        """Return the groups in which requests were scored, those with the smallest share of right answers first."""
        if not self.has_scores:
            return []
        scored = self.table.select(["task", "correct"]).drop_null().group_by("task")
        groups = scored.aggregate([("correct", "sum"), ("correct", "count")]).to_pylist()
        tasks = [TaskGrades(group["task"], group["correct_sum"], group["correct_count"]) for group in groups]
        return sorted(tasks, key=lambda task: (task.right / task.number, task.name))

    def codes(self) -> list[tuple[str, int]]:
        """Return the codes of errors with their numbers, the most frequent first."""
        counted = pc.value_counts(pc.drop_null(self.table["code"]))
        pairs = [(entry["values"], entry["counts"]) for entry in counted.to_pylist()]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))

    def positions(self, chosen: Filter) -> Numbers:
        """Return the rows that a filter leaves, whatever its `text` is."""
        return select(self.table, chosen)

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
        return [self.entry(int(position), raw) for position, raw in zip(positions, self.raw(positions), strict=True)]

    def entry(self, position: int, raw: Raw) -> Entry:
        """Return the request at a row of `table`, of its lines."""
        line, custom_id, ok, code = (self.table[name][position].as_py() for name in ("line", "custom_id", "ok", "code"))
        answer = json_lines.loads(raw.answer) if raw.answer else {}
        row = ResultRow.of(line, custom_id, readable(raw.request)[1], answer, raw.seconds)
        grade = grade_of(self.table["correct"][position].as_py()) if self.has_scores else ""
        return Entry(row, state_of(ok, code), code, grade)

    def page(self, chosen: Filter, limit: int, *, after: int | None = None, before: int | None = None) -> Page:
        """Return the first `limit` filtered requests behind `after` or in front of `before`. Raises NotFoundError."""
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
        pages = self.page(chosen, 1, before=line), self.page(chosen, 1, after=line)
        before, after = (page.entries[0].row.line if page.entries else None for page in pages)
        return before, after

    def each(self, chosen: Filter) -> Iterator[tuple[Entry, Raw]]:
        matches = search_for(chosen.text)
        left = self.positions(chosen)
        for start in range(0, left.size, PIECE):
            piece = left[start : start + PIECE]
            for position, raw in zip(piece.tolist(), self.raw(piece), strict=True):
                if matches is None or matches(raw)[0]:
                    yield self.entry(position, raw), raw

    def _search(self, text: str, left: Numbers, limit: int) -> tuple[Numbers, int | None]:
        """Return at most `limit` of these rows whose texts contain `text`, and the row at which the search stopped."""
        matches = search_for(text)
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


def max_line_bytes(storage: Storage) -> int:
    """Return the longest line that is shown: answers may be longer than requests."""
    return max(MAX_LINE_BYTES, storage.settings.max_line_bytes)


def read_lines(file: IO[bytes] | None, starts: Numbers, max_bytes: int) -> list[bytes]:
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
