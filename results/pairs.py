"""Pairs: the requests that two batches share, by custom_id, and whether their answers differ.

Both batches are read as `results.rows` reads one. Which requests they share is known without reading any text, and a
page reads the lines that it shows. Only a search for those that differ reads what it compares, COMPARED_BYTES for a
page at most; the next page goes on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow.compute as pc

from batchyard import responses
from results.filter import Numbers
from results.rows import PIECE, Entry, Rows
from results.search import Raw
from store.formats import rows as rows_file

COMPARED_BYTES = 16 * 1024 * 1024
_OWN = ("id", "created", "usage", "model", "object", "system_fingerprint", "service_tier", "simulated")
"""Parts of a response that say nothing of its answer."""


class Pair(NamedTuple):
    """A request in two batches."""

    first: Entry
    second: Entry
    differ: bool


class PairPage(NamedTuple):
    """Some of the pairs. The next page goes on behind line `after` of the first batch; None if there is none.

    `stopped` says that the search has ended there before it had found enough.
    """

    pairs: list[Pair]
    after: int | None
    stopped: bool


class Pairs:
    """The requests that two batches share, in the order of the first one.

    Attributes:
        shared, only_first, only_second: numbers of requests.
    """

    def __init__(self, first: Rows, second: Rows) -> None:
        self._first, self._second = first, second
        ids = first.table["custom_id"]
        others = second.table["custom_id"].combine_chunks()
        places = pc.fill_null(pc.index_in(ids, value_set=others, skip_nulls=True), -1)
        # A line that is no valid request has no custom_id.
        named = pc.fill_null(pc.not_equal(ids, ""), False)
        self._places: Numbers = np.where(named.to_numpy(), places.to_numpy(), -1).astype(np.int64)
        self.shared = int((self._places >= 0).sum())
        self.only_first = self._places.size - self.shared
        self.only_second = second.table.num_rows - self.shared

    def successes(self) -> dict[str, int]:
        """Return how many of the shared requests succeeded in `both` batches, in the `first` or `second` only, or in
        `neither`."""
        mine = np.flatnonzero(self._places >= 0)
        first, second = (
            pc.fill_null(rows.table["ok"], False).to_numpy()[places]
            for rows, places in ((self._first, mine), (self._second, self._places[mine]))
        )
        both = int((first & second).sum())
        return {
            "both": both,
            "first": int(first.sum()) - both,
            "second": int(second.sum()) - both,
            "neither": int((~first & ~second).sum()),
        }

    def page(self, limit: int, *, after: int | None = None, differing: bool = False) -> PairPage:
        """Return the first `limit` pairs behind line `after` of the first batch; only the `differing` ones on request.

        Raises:
            NotFoundError: the first batch has no such line.
        """
        left = np.flatnonzero(self._places >= 0)
        if after is not None:
            left = left[left > self._first.position(after)]
        pairs: list[Pair] = []
        budget = COMPARED_BYTES
        step = PIECE if differing else limit + 1
        for start in range(0, left.size, step):
            piece = left[start : start + step]
            raws = zip(piece.tolist(), self._first.raw(piece), self._raw_of_second(self._places[piece]), strict=True)
            for position, raw, other in raws:
                differ = _answer(raw) != _answer(other)
                if differ or not differing:
                    if len(pairs) == limit:
                        return PairPage(pairs, pairs[-1].first.row.line, stopped=False)
                    place = int(self._places[position])
                    pairs.append(Pair(self._first.entry(position, raw), self._second.entry(place, other), differ))
                budget -= len(raw.request) + len(raw.answer) + len(other.request) + len(other.answer)
                if budget <= 0 and position != left[-1]:
                    return PairPage(pairs, int(self._first.table["line"][position].as_py()), stopped=True)
        return PairPage(pairs, None, stopped=False)

    def _raw_of_second(self, places: Numbers) -> list[Raw]:
        """Return lines of the second batch, whose rows need not ascend."""
        order = np.argsort(places)
        raws = self._second.raw(places[order])
        return [raws[rank] for rank in np.argsort(order).tolist()]


def _answer(raw: Raw) -> Any:
    """Return what a request was answered, without what is new in every answer; None if it has no answer yet."""
    if not raw.answer:
        return None
    line = orjson.loads(raw.answer)
    response = line.get("response") or {}
    if response.get("status_code") != 200:
        return rows_file.code(line)
    body = response.get("body") or {}
    if outputs := responses.outputs(body):
        return [(output.text, output.refusal, output.tool_calls) for output in outputs]
    return {name: value for name, value in body.items() if name not in _OWN}
