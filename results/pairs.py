"""Pairs: the requests that two batches share, by custom_id, which batch did better, and whether their answers differ.

Only `differences` and a search for answers that differ read texts: COMPARED_BYTES at most. The next page continues.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batchyard import json_lines
from batchyard.endpoints import responses
from results.filter import Numbers
from results.rows import PIECE, Entry, Rows
from results.search import Raw
from store.formats import rows as rows_file
from store.formats.results import readable

Only = Literal["", "differ", "changed", "worse", "better"]
CHANGES = {-1: "worse", 0: "", 1: "better"}
COMPARED_BYTES = 16 * 1024 * 1024
COMPARED_PAIRS = 2_000
"""Most pairs that `differences` compares."""
_OWN = ("id", "created", "usage", "model", "object", "system_fingerprint", "service_tier", "simulated")
"""Parts of a response that say nothing of its answer."""
_PROMPTS = ("messages", "prompt", "input", "file_url", "query", "documents", "text_1", "text_2")

Flags = npt.NDArray[np.bool_]


class Pair(NamedTuple):
    """A request in two batches. `change`: `better` or `worse`, from the first batch to the second, or empty."""

    first: Entry
    second: Entry
    differ: bool
    change: str


@dataclass
class Differences:
    """How many of the first `compared` pairs differ in their answers and prompts.

    `settings` counts the first and second value of each setting that differs: a parameter, or the system message.
    """

    compared: int = 0
    answers: int = 0
    prompts: int = 0
    settings: dict[str, Counter[tuple[str | None, str | None]]] = field(default_factory=lambda: defaultdict(Counter))


class PairPage(NamedTuple):
    """Some pairs. The next page goes on behind line `after`; `stopped` there before enough were found."""

    pairs: list[Pair]
    after: int | None
    stopped: bool


class Pairs:
    """The requests that two batches share, in the order of the first one.

    A request is good if its answer is right where both batches have a score of it, or else if it succeeded. `goods`
    counts those good in `both`, in the `first` or `second` only, or in `neither`, if both batches have answered them.
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

        self.graded = first.has_scores and second.has_scores
        known, good, other_good = self._compared()
        self.goods = {
            "both": int((known & good & other_good).sum()),
            "first": int((known & good & ~other_good).sum()),
            "second": int((known & ~good & other_good).sum()),
            "neither": int((known & ~good & ~other_good).sum()),
        }
        self._changes = np.where(known, other_good.astype(np.int8) - good.astype(np.int8), 0)

    def _compared(self) -> tuple[Flags, Flags, Flags]:
        """Return by row of the first batch: whether both batches have answered it, and whether it is good in each."""
        shared = self._places >= 0
        goods = (self._first.table["ok"], self._of_second("ok"))
        if self.graded:
            grades = (self._first.table["correct"], self._of_second("correct"))
            both_graded = pc.and_(*map(pc.is_valid, grades))
            goods = tuple(pc.if_else(both_graded, *columns) for columns in zip(grades, goods, strict=True))
        known = shared & pc.and_(*map(pc.is_valid, goods)).to_numpy()
        return known, *(pc.fill_null(column, False).to_numpy() for column in goods)

    def _of_second(self, column: str) -> pa.ChunkedArray:
        """Return a column of the second batch in the order of the first, null where it has no such request."""
        return self._second.table[column].take(pa.array(self._places, mask=self._places < 0))

    def page(self, limit: int, *, after: int | None = None, only: Only = "") -> PairPage:
        """Return the first `limit` pairs after a line that differ or changed so. Raises NotFoundError."""
        differing = only == "differ"
        wanted = {"better": self._changes > 0, "worse": self._changes < 0, "changed": self._changes != 0}
        left = np.flatnonzero(wanted.get(only, self._places >= 0))
        if after is not None:
            left = left[left > self._first.position(after)]
        pairs: list[Pair] = []
        for position, raw, other, within in self._raws(left, PIECE if differing else limit + 1):
            differ = _answer(raw) != _answer(other)
            if differ or not differing:
                if len(pairs) == limit:
                    return PairPage(pairs, pairs[-1].first.row.line, stopped=False)
                place = int(self._places[position])
                entries = self._first.entry(position, raw), self._second.entry(place, other)
                pairs.append(Pair(*entries, differ, CHANGES[int(self._changes[position])]))
            if not within and position != left[-1]:
                return PairPage(pairs, int(self._first.table["line"][position].as_py()), stopped=True)
        return PairPage(pairs, None, stopped=False)

    def differences(self) -> Differences:
        """Compare the first pairs."""
        found = Differences()
        for _, raw, other, within in self._raws(np.flatnonzero(self._places >= 0), PIECE):
            found.compared += 1
            found.answers += _answer(raw) != _answer(other)
            (prompt, settings), (other_prompt, other_settings) = (_asked(each.request) for each in (raw, other))
            found.prompts += prompt != other_prompt
            for name in settings.keys() | other_settings.keys():
                if settings.get(name) != other_settings.get(name):
                    found.settings[name][settings.get(name), other_settings.get(name)] += 1
            if not within or found.compared == COMPARED_PAIRS:
                break
        return found

    def _raws(self, left: Numbers, step: int) -> Iterator[tuple[int, Raw, Raw, bool]]:
        """Yield these rows of the first batch with both lines, and whether COMPARED_BYTES allow more."""
        budget = COMPARED_BYTES
        for start in range(0, left.size, step):
            piece = left[start : start + step]
            places = self._places[piece]
            order = np.argsort(places)  # the rows of the second batch need not ascend
            others = self._second.raw(places[order])
            ranks = np.argsort(order).tolist()
            raws = zip(piece.tolist(), self._first.raw(piece), (others[rank] for rank in ranks), strict=True)
            for position, raw, other in raws:
                budget -= len(raw.request) + len(raw.answer) + len(other.request) + len(other.answer)
                yield position, raw, other, budget > 0


def _asked(request: bytes) -> tuple[Any, dict[str, str]]:
    """Return the prompt of a request, and its settings as texts."""
    body = readable(request)[1]
    prompt = {name: body[name] for name in _PROMPTS if name in body}
    settings = {name: value for name, value in body.items() if name not in (*_PROMPTS, "metadata")}
    match prompt.get("messages"):
        case [{"role": "system", "content": system}, *rest]:
            settings["system message"], prompt["messages"] = system, rest
    texts = {
        name: value if isinstance(value, str) else json_lines.dumps(value).decode() for name, value in settings.items()
    }
    return prompt, texts


def _answer(raw: Raw) -> Any:
    """Return what a request was answered, without what is new in every answer; None if it has no answer yet."""
    if not raw.answer:
        return None
    line = json_lines.loads(raw.answer)
    response = line.get("response") or {}
    if response.get("status_code") != 200:
        return rows_file.code(line)
    body = response.get("body") or {}
    if outputs := responses.outputs(body):
        return [(output.text, output.refusal, output.tool_calls) for output in outputs]
    return {name: value for name, value in body.items() if name not in _OWN}
