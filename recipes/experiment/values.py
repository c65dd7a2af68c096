"""The values of a child by item, from its results and its journal.

Of every recipe: `completed` (1 or 0), `requests`, `errors` (the share of an item's requests that failed),
`input_tokens`, `output_tokens`, `seconds` (the mean of its requests), and each number that the result of an item has.
Of `rollout` the metrics of its prompt (recipes.measures.tally), of `panel` the score of its winner as `best_of`, of
`refine` `pass_rate` (1 if it was accepted) and `attempts`. A mean of that name in metrics.json is that of the column.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from batchyard import json_lines
from recipes.measures import tally
from recipes.measures.paired import Values

Cells: TypeAlias = "np.memmap[tuple[int, int], np.dtype[np.float64]]"
MOST_COLUMNS = 256
"""Columns of a table. Further ones are left out."""
MOST_LEFT_OUT = 10_000
"""Names of columns that were left out, as far as they are counted."""
ROWS = 65_536
"""Rows of a journal that are read at once."""
BLOCK_BYTES = 64 * 1024
OF_ITEMS = ("completed", "requests", "errors", "input_tokens", "output_tokens", "seconds")
_READ = ("number", "kind", "ok", "error", "input_tokens", "output_tokens", "seconds")


class ItemValues:
    """Columns of numbers by item, kept in a local file. NaN is no value."""

    def __init__(self, file: IO[bytes], rows: int) -> None:
        self.rows = rows
        self._file = file
        self._start = file.seek(0, os.SEEK_END)
        self.names: dict[str, int] = {}  # of the columns, each with its place
        self.left_out: dict[str, None] = {}  # names that there was no room for, the first MOST_LEFT_OUT of them
        self._used = 0
        self._cells: Cells | None = np.memmap(  # the file has a page when it is written to
            file, np.float64, "r+", self._start, (MOST_COLUMNS, rows)
        )

    def get(self, name: str) -> Values | None:
        """Return a column by the number of the item."""
        if name not in self.names:
            return None
        size = self.rows * np.dtype(np.float64).itemsize
        return np.frombuffer(os.pread(self._file.fileno(), size, self._start + self.names[name] * size))

    def end(self) -> None:
        """Take no more values. A table that takes some holds a file descriptor."""
        self._cells = None

    def set(self, name: str, number: int | slice, value: float | Values) -> None:
        """Write values to a column; without room for another one it is left out."""
        if self._cells is None:
            raise ValueError("the table takes no more values")
        if name not in self.names:
            if self._used == MOST_COLUMNS:
                if len(self.left_out) < MOST_LEFT_OUT:
                    self.left_out[name] = None
                return
            self._cells[self._used].fill(np.nan)
            self.names[name] = self._used
            self._used += 1
        self._cells[self.names[name], number] = value

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            del self.names[name]


@dataclass(frozen=True)
class ComparedChild:
    """A job or a batch of an experiment that has ended."""

    variant: str  # its name in the experiment
    repeat: int  # 0 for the first. The repeats of a variant are pooled item by item.
    round: int  # 0 for the first. The last round is compared; the others are shown.
    job_id: str
    config_sha256: str
    # Its `manifest.json`, {} if it has none. Of it are read, where they are: `recipe`, `recipe_sha256`, `input_sha256`,
    # `items_sha256`, `work_sha256`, `simulated`, `batchyard`, `options`, `seed`, `models` (name to configuration, with
    # `engine`), `request_counts`, `usage`, `created_at`, `started_at`, `ended_at` (in seconds since 1970).
    manifest: Mapping[str, Any]
    metrics: Mapping[str, Any]  # its `metrics.json`, {} if it has none
    journal: Path | None  # its `journal.parquet`, None if it has none
    results: Path | None  # its `results.jsonl` (keys `number`, `state`, `result`), None if it has none
    # Its end: `completed`, `failed`, `expired` or `cancelled`. Only what has completed is compared.
    status: str = "completed"
    error: str | None = None  # why it has not completed

    @property
    def key(self) -> str:
        """Its name in reports: `<variant>/<repeat>/<round>`."""
        return f"{self.variant}/{self.repeat}/{self.round}"


@dataclass
class Measured:
    """What a child's files say."""

    table: ItemValues
    # Those of each request that the engine answered
    seconds: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    errors: Counter[str] = field(default_factory=Counter)  # requests that failed, by error code


def read(child: ComparedChild, file: IO[bytes]) -> Measured:
    """Read a child's files, in memory 50 bytes an item and 4 a request; the rest is in `file`."""
    journal = None if child.journal is None else pq.ParquetFile(child.journal)
    groups = [] if journal is None else [journal.metadata.row_group(at) for at in range(journal.num_row_groups)]
    place = -1 if journal is None else journal.schema_arrow.get_field_index("number")
    last = max((group.column(place).statistics.max for group in groups if group.num_rows), default=-1)
    table = ItemValues(file, 1 + max(_last_number(child.results), last, 0))
    if child.results is not None:
        for item in _items(child.results):
            table.set("completed", item["number"], item["state"] == "completed")
            for name, value in (item["result"] or {}).items():
                if isinstance(value, int | float) and name not in OF_ITEMS:
                    table.set(name, item["number"], value)
        if of_recipe := _OF_RECIPES.get(str(child.manifest.get("recipe"))):
            of_recipe(table, child.results, child.manifest.get("options") or {})
    measured = Measured(table) if journal is None else _read_journal(table, journal)
    table.end()
    return measured


def _items(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            yield json_lines.loads(line)


def _last_number(path: Path | None) -> int:
    """Return the number in the last line of results, -1 without any."""
    if path is None:
        return -1
    with path.open("rb") as file:
        start, end = file.seek(0, os.SEEK_END), b""
        while start and end.rstrip().find(b"\n") == -1:
            size = min(start, max(BLOCK_BYTES, len(end)))
            start = file.seek(start - size)
            end = file.read(size) + end
    return int(json_lines.loads(end.rstrip().rpartition(b"\n")[2])["number"]) if end.strip() else -1


def _read_journal(table: ItemValues, journal: pq.ParquetFile) -> Measured:
    completed = table.get("completed")
    sums: dict[str, Values] = defaultdict(lambda: np.zeros(table.rows))
    seconds, codes = [], Counter[str]()
    for batch in journal.iter_batches(ROWS, columns=list(_READ), use_threads=False):
        batch = batch.filter(pc.equal(batch["kind"], "request"))
        if not batch.num_rows:
            continue
        numbers = batch["number"].to_numpy()
        first = int(numbers.min())
        times = batch["seconds"].to_numpy(zero_copy_only=False)
        failed = pc.invert(pc.fill_null(batch["ok"], True))
        weights = {
            "requests": np.ones(len(numbers)),
            "errors": failed.to_numpy(zero_copy_only=False),
            "input_tokens": pc.fill_null(batch["input_tokens"], 0).to_numpy(zero_copy_only=False),
            "output_tokens": pc.fill_null(batch["output_tokens"], 0).to_numpy(zero_copy_only=False),
            "seconds": np.nan_to_num(times.astype(np.float64)),
            "timed": np.isfinite(times),
        }
        for name, values in weights.items():
            counted = np.bincount(numbers - first, values)
            sums[name][first : first + len(counted)] += counted
        seconds.append(times[np.isfinite(times)])
        for counts in pc.value_counts(pc.fill_null(batch["error"].filter(failed), "unknown")).to_pylist():
            codes[counts["values"]] += counts["counts"]
    there = sums["requests"] > 0
    known = there if completed is None else there | np.isfinite(completed)
    for name in ("requests", "input_tokens", "output_tokens"):
        table.set(name, slice(None), np.where(known, sums[name], np.nan))
    with np.errstate(invalid="ignore"):  # an item without requests has none of these
        table.set("errors", slice(None), sums["errors"] / np.where(there, sums["requests"], np.nan))
        table.set("seconds", slice(None), sums["seconds"] / np.where(sums["timed"] > 0, sums["timed"], np.nan))
    return Measured(table, np.concatenate(seconds) if seconds else np.empty(0, np.float32), codes)


def _of_rollout(table: ItemValues, path: Path, options: Mapping[str, Any]) -> None:
    """Set the metrics of each prompt, as recipe `rollout` averages them."""
    binary = tally.all_binary(_kept(item) for item in _items(path))
    n = options.get("n") or max((len(_kept(item)) for item in _items(path)), default=1)
    threshold, skips = options.get("threshold"), bool(options.get("skip_unanswered"))
    known = True
    variables: set[str] = set()
    unjudged: list[tuple[int, int]] = []
    for item in _items(path):
        samples = list(tally.samples_of(_kept(item), n, binary=binary))
        prompt = tally.SampledPrompt(samples, n, skip_unanswered=skips, adaptive=threshold is not None)
        for name, value in prompt.metrics.items():
            table.set(name, item["number"], value)
        if threshold is not None:
            table.set("solved", item["number"], prompt.reaches(threshold))
        known = known and prompt.correct is not None
        variables |= prompt.variables
        if prompt.counted and not any(sample.judged for sample in prompt.counted):
            unjudged.append((item["number"], len(prompt.counted)))
    for number, count in unjudged:
        for variable in variables:
            for name, value in tally.of_unjudged(variable, count).items():
                table.set(name, number, value)
    if not known:
        table.drop([name for name in table.names if name.startswith(("pass@", "pass^"))])


def _kept(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    return (item["result"] or {}).get("samples") or []


def _of_panel(table: ItemValues, path: Path, options: Mapping[str, Any]) -> None:
    """Set the score of each task's winner, 0 where all agents failed, as recipe `panel` averages it."""
    for item in _items(path):
        results = (item["result"] or {}).get("results") or []
        if item["state"] in ("completed", "failed") and options.get("checks"):
            table.set("best_of", item["number"], results[0]["score"] if results else 0.0)


def _of_refine(table: ItemValues, path: Path, options: Mapping[str, Any]) -> None:
    """Set whether an item was accepted, as recipe `refine` counts it, and its attempts."""
    for item in _items(path):
        table.set("pass_rate", item["number"], item["state"] == "completed")
        table.set("attempts", item["number"], len((item["result"] or {}).get("history") or []))


_OF_RECIPES: Mapping[str, Callable[[ItemValues, Path, Mapping[str, Any]], None]] = {
    "rollout": _of_rollout,
    "panel": _of_panel,
    "refine": _of_refine,
}
