"""The order of a table's columns in prompts, in which sorted rows share most of their beginnings.

An engine with a prefix cache computes a shared beginning once. Requests are sorted anyway, so which column stands first
decides how long their shared beginnings are. All rows have one order; with `OrderByRow` each has its own. What is known
of a table are its first CELLS cells, so neither time nor memory grows with it.
"""

from __future__ import annotations

import heapq
import itertools
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from batchyard.tables import cells
from batchyard.tables.cells import CellError

CELLS = 600_000
"""Cells that decide the order, such as 30,000 rows of 20 columns."""
MAX_COLUMNS = 1_000
"""More are no columns of a table but keys that are data, and each would be a line of each prompt."""
ROW_NAME = "custom_id"
"""The column that names a row. It is no part of its prompt."""
_INDEX = re.compile(r"(__index_level_\d+__)?")
"""A column in which pandas keeps a frame's index: in Parquet by this name, in csv without one."""

Row: TypeAlias = Mapping[str, Any]
Order: TypeAlias = Callable[[Row], Sequence[str]]
"""Returns the columns of a row's prompt in their order."""
Numbers: TypeAlias = npt.NDArray[np.int64]


def lines(row: Row, names: Iterable[str]) -> str:
    """Return a row as lines `name: value` in this order. A column without a value is its name alone."""
    texts = [(name, cells.optional(row.get(name), name)) for name in names]
    if all(text is None for _, text in texts):
        raise CellError("all columns are empty", "empty_value")
    return "\n".join(f"{name}:" if text is None else f"{name}: {text}" for name, text in texts)


def is_index(name: str) -> bool:
    """True for the name of a column that numbers rows. It is part of a prompt only where a template names it."""
    return _INDEX.fullmatch(name) is not None


class TooManyColumns(ValueError):
    """A table has more than MAX_COLUMNS columns."""


class Statistics:
    """Which cells of a table are equal, and how long they are."""

    def __init__(self, without: Collection[str] = ()) -> None:
        """`without`: columns that are left out, besides ROW_NAME."""
        self.names: list[str] = []  # the columns of all rows, in the order in which rows have shown them
        self._known = {ROW_NAME, *without}
        self._hashes: list[array[int]] = []
        self._lengths: list[array[int]] = []
        self._rows = 0

    def add(self, row: Row) -> None:
        """Count a row. After CELLS cells only its names are new. Raises TooManyColumns."""
        for name in row:
            if name not in self._known:
                self._known.add(name)
                if is_index(name):
                    continue
                self.names.append(name)
                if len(self.names) > MAX_COLUMNS:
                    raise TooManyColumns
                self._hashes.append(array("q", [hash("")] * self._rows))
                self._lengths.append(array("q", [0] * self._rows))
        if self.full:
            return
        for name, hashes, lengths in zip(self.names, self._hashes, self._lengths, strict=True):
            text = _text(row.get(name), name)
            hashes.append(hash(text))
            lengths.append(len(text))
        self._rows += 1

    @property
    def full(self) -> bool:
        """True if no further row counts."""
        return self._rows * len(self.names) >= CELLS

    def order(self) -> tuple[str, ...]:
        """Return the names in one order for all rows: the same for the same rows, in whatever order these are."""
        sizes = [int(lengths.sum()) for lengths in self._line_lengths()]
        return tuple(self.names[column] for column in one_order(self._codes(), sizes))

    def order_by_row(self) -> OrderByRow:
        """Return an order for each row that was counted."""
        codes, lengths = self._codes(), self._line_lengths()
        default = one_order(codes, [int(each.sum()) for each in lengths])
        orders = grouped_orders(codes, lengths, default)
        rows = map(hash, zip(*self._hashes, strict=True))
        return OrderByRow(self.names, dict(zip(rows, orders, strict=True)), default)

    def _codes(self) -> list[Numbers]:
        none = np.zeros(self._rows, np.int64)
        return [_refined(none, np.array(hashes, np.int64)) for hashes in self._hashes]

    def _line_lengths(self) -> list[Numbers]:
        beside = len(": \n")
        return [
            np.array(lengths, np.int64) + len(name) + beside
            for name, lengths in zip(self.names, self._lengths, strict=True)
        ]


@dataclass
class OrderByRow:
    """An order for each row of a table, and one for any other row."""

    names: Sequence[str]
    orders: Mapping[int, Sequence[int]]  # by the hash of the hashes of a row's cells; as numbers of columns
    default: Sequence[int]

    def __call__(self, row: Row) -> Sequence[str]:
        key = hash(tuple(hash(_text(row.get(name), name)) for name in self.names))
        return [self.names[column] for column in self.orders.get(key, self.default)]


def one_order(codes: Sequence[Numbers], sizes: Sequence[int]) -> list[int]:
    """Return the columns in the order in which sorted rows share most: constants first, then the greatest saving.

    Rows that are equal in the columns so far are computed as one up to there. That column is next whose lines save
    most against a place at the end, where each distinct row has its own: (distinct rows - rows that are distinct with
    it) times its length. Columns that it determines stand before it, the one with fewest different cells first: there
    they are computed less often than behind it, and tell no more rows apart.

    Args:
        codes: of each column, for each row the first row with an equal cell.
        sizes: of each column, characters in all rows.
    """
    columns = range(len(codes))
    rows = len(codes[0]) if codes else 0
    groups = np.zeros(rows, np.int64)
    for code in codes:
        groups = _refined(groups, code)
    distinct_rows = _distinct(groups)
    groups = np.zeros(rows, np.int64)
    order = [column for column in columns if _determines(groups, codes[column])]
    # Savings only fall as rows are told apart, so a column whose new one is not below an old one is the best.
    savings = [(-distinct_rows * sizes[column], column) for column in columns if column not in order]
    heapq.heapify(savings)
    while savings:
        _, column = heapq.heappop(savings)
        refined = _refined(groups, codes[column])
        saving = (-(distinct_rows - _distinct(refined)) * sizes[column], column)
        if savings and saving > savings[0]:
            heapq.heappush(savings, saving)
            continue
        determined = {other for _, other in savings if _determines(refined, codes[other])}
        together = {other: _distinct(_refined(groups, codes[other])) for other in {column, *determined}}
        order += sorted(together, key=lambda other: (together[other], other))
        groups, savings = refined, [entry for entry in savings if entry[1] not in determined]
        heapq.heapify(savings)
    return order


def grouped_orders(codes: Sequence[Numbers], lengths: Sequence[Numbers], default: Sequence[int]) -> list[Sequence[int]]:
    """Return an order of the columns for each row, by greedy group recursion.

    The rows with one cell in common that has the most hits, the squared length of its line and of those that it
    determines times the rows but one, become a group that begins with it. The same follows within the group without
    that column, and among the rows that are left. After "Optimizing LLM Queries in Relational Data Analytics
    Workloads" (MLSys 2025), algorithm 1; beyond it, columns that are constant in a group come first there.

    Args:
        codes: as in `one_order`.
        lengths: of each column, the characters of each row's line.
        default: the order of what tells rows apart without saving anything.
    """
    if not codes:
        return []
    table, weights = np.stack(codes), np.stack([_weights(code, codes, lengths) for code in codes])
    orders: list[Sequence[int]] = [default] * table.shape[1]
    groups: list[tuple[Numbers, list[int], list[int]]] = [(np.arange(len(orders)), [], list(default))]
    while groups:
        rows, before, rest = groups.pop()
        within = table[_down(rest), rows]
        constant = (within == within[:, :1]).all(axis=1)
        varying = np.flatnonzero(~constant)
        before = [*before, *itertools.compress(rest, constant.tolist())]
        rest = [rest[place] for place in varying.tolist()]
        left = np.ones(len(rows), bool)
        for place, members in _groups(within[varying], weights[_down(rest), rows]):
            left[members] = False
            groups.append((rows[members], [*before, rest[place]], rest[:place] + rest[place + 1 :]))
        order = before + rest
        for row in rows[left].tolist():
            orders[row] = order
    return orders


def _weights(first: Numbers, codes: Sequence[Numbers], lengths: Sequence[Numbers]) -> Numbers:
    """Return for each row the squared length of a column's line, and of those that its cell determines."""
    determined = (length**2 for code, length in zip(codes, lengths, strict=True) if _determines(first, code))
    return sum(determined, np.zeros(len(first), np.int64))


def _groups(codes: Numbers, weights: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Yield the place of a column and the rows of each group, the one with most hits first; no row twice."""
    columns, rows = codes.shape
    if columns == 0 or rows < 3:  # two rows share no cell but those that are constant
        return
    heap: list[tuple[int, int, int, Numbers]] = []
    by_code = np.argsort(codes, axis=1, kind="stable")
    starts = np.diff(np.take_along_axis(codes, by_code, axis=1), axis=1, prepend=-1) != 0
    for place in range(columns):
        bounds = [*np.flatnonzero(starts[place]).tolist(), rows]
        for start, end in itertools.pairwise(bounds):
            if end - start > 1:
                members = by_code[place, start:end]
                first = int(members[0])
                heap.append((-int(weights[place, first]) * (end - start - 1), place, first, members))
    heapq.heapify(heap)
    left = np.ones(rows, bool)
    while heap:
        _, place, _, members = heapq.heappop(heap)
        still = members[left[members]]
        if still.size == members.size:
            left[members] = False
            yield place, members
        elif still.size > 1:
            first = int(still[0])
            heapq.heappush(heap, (-int(weights[place, first]) * (still.size - 1), place, first, still))


def _down(places: Sequence[int]) -> Numbers:
    """Return places of columns so that `table[_down(places), rows]` has a line for each."""
    return np.array(places, np.int64)[:, np.newaxis]


def _refined(groups: Numbers, code: Numbers) -> Numbers:
    """Return for each row the first one that is alike in both, as `Statistics` has codes."""
    _, first, inverse = np.unique(groups * len(code) + code, return_index=True, return_inverse=True)
    refined: Numbers = first[inverse]
    return refined


def _determines(groups: Numbers, code: Numbers) -> bool:
    """True if rows of one group have one code. A group is the number of its first row."""
    return bool((code[groups] == code).all())


def _distinct(groups: Numbers) -> int:
    return int(np.count_nonzero(groups == np.arange(len(groups))))


def _text(value: Any, name: str) -> str:
    """Return a cell as `lines` writes it; no text for one without a value, or that no prompt can have."""
    if type(value) is str:
        return value
    try:
        return cells.optional(value, name) or ""
    except CellError:
        return ""
