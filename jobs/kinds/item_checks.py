"""Checks of the rows that become a job's items: every bad row is reported.

The items of a retry are checked, too, since its options may be others.
"""

import random
import signal
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from batchyard import json_lines
from batchyard.errors import RequestError
from batchyard.models import ModelSpec
from batchyard.recipes import Answer, FlowRecipe, InvalidItem, Item, Options, messages_of
from batchyard.recipes.program import Program, RecipeError, Request
from batchyard.request_lines.lines import LineError
from batchyard.settings import Settings
from batchyard.tables import formats, images
from batchyard.tables.template import TemplateError, parsed
from batchyard.wording import MAX_NAME, nearest, quoted
from jobs.intake import author_calls
from jobs.intake.requests import PreparedRequest, Preparer
from jobs.intake.rows import Columns, RowError, rows
from jobs.items import stream
from recipes.options import column_of
from store.formats import items as items_file
from store.records import Job
from tasks.context import AppContext
from tasks.intake import sampling
from tasks.intake.validation import ValidationReport
from tasks.steps import registry

MAX_CUSTOM_ID = 256
MAX_BARRIER_ITEMS = 50_000
"""Items of a job whose stages begin one after the other: all of them are live."""
PROBED_ITEMS = 100
"""The first turns of so many items are checked as a batch's requests are, before anything runs."""
TOO_LONG = "context_length_exceeded"
REMEDY = "A turn only says what to ask next; its author has to take out of it what waits or does not end."
FirstTurns: TypeAlias = tuple[list[list[PreparedRequest]], list[dict[str, Any]]]
"""The requests of each item's first turn, and what is wrong with rows, as in `errors.data` of a job."""


class _Overrun(BaseException):
    """A recipe took too long. No `except Exception` of its own catches this."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the block with _Overrun after so long, in a process's main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise _Overrun

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def write(context: AppContext, recipe: FlowRecipe[Any], job: Job, report: ValidationReport) -> tuple[str, int]:
    """Write the items file of a job, and order the columns of its template. Return SHA-256 and number of the items."""
    checker = ItemChecker(context.settings, job, recipe, report)
    if job.items_sha256 is not None:  # of a retry
        items = items_file.Reader(context.artifacts, job.items_sha256)
        checker.order_columns((item.columns for item in items), uniform=False)
        sha256, total = job.items_sha256, checker.check(items)
    else:
        with context.artifacts.open(job.input_sha256) as source, context.artifacts.create() as target:
            writer = items_file.ItemsWriter(target)
            try:
                checker.write(source, job.input_name, writer)
            except RequestError as error:
                report.add(None, LineError(error.code or "invalid_input_file", error.message, error.param))
            writer.close()
        sha256, total = target.sha256, writer.total
    checker.check_size(total)
    job.options = {**job.options, **checker.ordered}
    return sha256, total


class ItemChecker:
    """Checks the rows of one job's input. Keeps 8 bytes a row, and the rows themselves only to shuffle them.

    `first_turn` has the requests of the row that was probed last; `ordered` the options that the rows' order changed.
    """

    def __init__(self, settings: Settings, job: Job, recipe: FlowRecipe[Any], report: ValidationReport) -> None:
        self._job = job
        self._recipe = recipe
        self._report = report
        self._options: Options = recipe.options.model_validate(job.options)
        self._limit = min(settings.max_items, self._options.limit or settings.max_items)
        self._settings = settings
        self._hangs = False
        self._preparer = Preparer({name: ModelSpec.model_validate(spec) for name, spec in job.models.items()})
        self._step_checks = registry.checks(job.post_process)
        self.first_turn: list[PreparedRequest] = []
        self.ordered: dict[str, Any] = {}
        self._hashes = array("q")
        self._first: dict[str, int] = {}

    def order_columns(self, rows: Iterable[Mapping[str, Any] | RowError], *, uniform: bool) -> None:
        """Put all columns of the template in the order that the rows decide, without those that options name.

        `uniform`: all rows have the same columns. Raises RequestError: each row would have an order of its own, or
        there are too many columns.
        """
        try:
            template = parsed(self._options.template or "")
        except TemplateError:
            return  # the error of each row
        if not template.is_open:
            return
        if template.by_row:
            message = "A job has one order of all columns, {*}; each row has its own in map, submit and run."
            raise RequestError(message, code="invalid_value", param="options.template")
        readable = (row for row in islice(rows, self._limit) if not isinstance(row, RowError))
        try:
            ordered = template.ordered(readable, without=self._options.named_columns(), uniform=uniform)
        except TemplateError as error:
            raise RequestError(f"The template has {error}.", code="invalid_value", param="options.template") from None
        self.ordered = {"template": ordered.text}
        self._options = self._options.model_copy(update=self.ordered)

    def write(self, source: Any, name: str, writer: items_file.ItemsWriter) -> None:
        """Add every row to the items file, or its error to the report. Raises RequestError for the whole input."""
        kind = formats.kind_of(name)
        self.order_columns(self._rows(source, name), uniform=kind is not None and kind.format in formats.UNIFORM)
        sample = self._sample(source, name)
        shuffled: list[tuple[int, str, bytes]] = []
        count = 0
        for first in (True, False) if sample else (False,):  # the sample begins before the other items
            source.seek(0)
            for number, row in enumerate(self._rows(source, name), 1):
                if number > self._limit:
                    if self._options.limit is None and not first:
                        most = self._settings.max_items
                        message = f"The input has more than {most} rows; split it, or raise BATCHYARD_MAX_ITEMS."
                        self._report.add(None, LineError("too_many_items", message))
                    break
                if (number in sample) is not first:
                    continue
                count += 1
                item = self.checked(number, row, probed=number <= PROBED_ITEMS)
                if item is None or self._report.count:
                    continue
                entry = (number, item.custom_id, json_lines.dumps(self._stored(item.columns), default=str))
                if first or self._options.shuffle is None:
                    writer.add(*entry)
                else:
                    shuffled.append(entry)
        if count == 0:
            self._report.add(None, LineError("empty_file", "The input has no rows."))
        if self._options.shuffle is not None:
            random.Random(self._options.shuffle).shuffle(shuffled)
            for entry in shuffled:
                writer.add(*entry)
        self._report_duplicates(source, name)

    def _sample(self, source: Any, name: str) -> frozenset[int]:
        """Return the numbers of the rows that the job's plan answers first; empty without a plan."""
        if self._job.sample_rows is None:
            return frozenset()
        source.seek(0)
        rows = enumerate(islice(self._rows(source, name), self._limit), 1)
        sizes = (
            (0 if isinstance(row, RowError) else len(json_lines.dumps(row, default=str)), number)
            for number, row in rows
        )
        return sampling.drawn(sizes, self._job.sample_rows)

    def _stored(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns as JSON can have them, those of images as their messages have them."""
        template = self._options.template
        has_messages = any(columns.get(name) is not None for name in ("messages", "prompt"))
        of_template = () if template is None else parsed(template).images
        return images.stored(columns, images.COLUMNS if has_messages else of_template)

    def _rows(self, source: Any, name: str) -> Iterator[Mapping[str, Any] | RowError]:
        return rows(source, name, self._settings, self._options.null_values)

    def check(self, items: items_file.Reader) -> int:
        """Add the error of each of these items to the report. Return their number."""
        for position, item in enumerate(items):
            self.checked(item.number, item.columns, probed=position < PROBED_ITEMS)
        return items.total

    def checked(self, number: int, row: Mapping[str, Any] | RowError, *, probed: bool) -> Item | None:
        """Return the item of a row; None for a bad row, which is reported. `probed`: check its first turn, too."""
        self.first_turn = []
        try:
            if isinstance(row, RowError):
                raise LineError(row.code, row.message)
            custom_id = _custom_id(number, row)
            self._hashes.append(hash(custom_id))
            item = Item(
                number=number,
                custom_id=custom_id,
                columns=row,
                job_seed=self._job.seed,
                system=self._options.system,
                template=self._options.template,
            )
            try:
                messages_of(row, self._options.template)
                self._check_columns(row)
            except InvalidItem as error:
                raise LineError(error.code, error.message) from None
            except _Overrun:
                message = (
                    f"the recipe took longer than {self._settings.judge_seconds} seconds to say which columns it needs"
                )
                raise LineError("recipe_hangs", message) from None
            for check in self._step_checks:
                if unusable := check(row):
                    raise LineError("invalid_request", unusable[1], unusable[0].removeprefix("body."))
            if probed and not self._report.count and not self._hangs:
                self._probe(item)
        except LineError as error:
            message = f"Row {number}: {error.message}"
            self._report.add(number, LineError(error.code, message, error.param))
            return None
        return item

    def _check_columns(self, row: Mapping[str, Any]) -> None:
        if self._recipe.columns is None:
            return
        with _time_limit(self._settings.judge_seconds):
            paths = self._recipe.columns(self._options, row)
        for path in paths:
            if column_of(row, path) is None:
                near = nearest(path, row)
                hint = f"; did you mean {near!r}?" if near else f"; it has {', '.join(row)[:MAX_NAME] or 'no columns'}."
                raise LineError("missing_column", f"the column {path!r} is missing{hint}", path)

    def _probe(self, item: Item) -> None:
        try:
            with _time_limit(self._settings.judge_seconds):
                program = Program(self._recipe, self._options, item, self._settings.max_item_requests)
        except RecipeError:
            return  # it is the item's own end, and its result will say it
        except _Overrun:
            self._hangs = True  # so is this, but others may hang as well
            return
        for request in program.wants:
            if isinstance(request, Request):
                prepared = self._preparer.prepare(item, item.number, request)
                error = prepared.error if isinstance(prepared, Answer) else None
                # A row that is too long fails alone, as in a batch, and its program may go on without this answer.
                is_row = error and error["code"] == TOO_LONG and not str(error.get("param")).startswith("max_")
                if error is not None and not is_row:
                    raise LineError(str(error["code"]), str(error["message"]), error.get("param"))
                if isinstance(prepared, PreparedRequest):
                    self.first_turn.append(prepared)
        program.close()

    def check_size(self, items: int) -> None:
        if items > MAX_BARRIER_ITEMS and not self._options.streaming:
            message = (
                f"With 'streaming' false all items are in memory at once, so {MAX_BARRIER_ITEMS:,} are the most, and "
                f"the job has {items:,}; leave 'streaming' out, or split the input."
            )
            self._report.add(None, LineError("too_many_items", message, "options.streaming"))
        most = stream.MOST_NOTIFIED
        if items > most and stream.notifies(self._options):
            message = f"Option 'notify' is for {most:,} items at most, and the job has {items:,}; leave it out."
            self._report.add(None, LineError("too_many_items", message, "options.notify"))

    def _report_duplicates(self, source: Any, name: str) -> None:
        """Report repeated custom_ids. Only those whose hash repeats are compared."""
        values, counts = np.unique(np.array(self._hashes), return_counts=True)
        repeated = set(values[counts > 1].tolist())
        if not repeated:
            return
        source.seek(0)
        for number, row in enumerate(self._rows(source, name), 1):
            if number > self._limit:
                return
            try:
                custom_id = "" if isinstance(row, RowError) else _custom_id(number, row)
            except LineError:
                continue
            if hash(custom_id) not in repeated:
                continue
            first = self._first.setdefault(custom_id, number)
            if first != number:
                message = f"Row {number}: the custom_id {quoted(custom_id)} is that of row {first}; it must be unique."
                self._report.add(number, LineError("duplicate_custom_id", message, "custom_id"))


def first_turns(
    context: AppContext, recipe: FlowRecipe[Any], job: Job, sample: Sequence[Columns | RowError]
) -> FirstTurns:
    """Return the first turns of a job's first rows. Raises RequestError as author_calls.call."""
    first: FirstTurns = author_calls.call(context, recipe, "first turn", REMEDY, _checked, job, sample)
    return first


def _checked(settings: Settings, recipe: FlowRecipe[Any], job: Job, sample: Sequence[Columns | RowError]) -> FirstTurns:
    report = ValidationReport()
    checker = ItemChecker(settings, job, recipe, report)
    checker.order_columns(sample, uniform=False)
    turns = []
    for number, row in enumerate(sample, 1):
        checker.checked(number, row, probed=True)
        turns.append(checker.first_turn)
    return turns, report.errors


def _custom_id(number: int, row: Mapping[str, Any]) -> str:
    value = row.get("custom_id")
    if value is None:
        return f"item-{number}"
    custom_id = str(value) if isinstance(value, int) else value
    if not isinstance(custom_id, str) or not custom_id or len(custom_id) > MAX_CUSTOM_ID:
        message = f"the custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters, not {quoted(str(value))}."
        raise LineError("invalid_custom_id", message, "custom_id")
    if not custom_id.isprintable():
        raise LineError("invalid_custom_id", f"the custom_id {quoted(custom_id)} has control characters.", "custom_id")
    return custom_id
