"""Result previews: a few requests of a batch with their answers, and its most frequent errors, for display.

Time and memory do not grow with the batch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import orjson
import pyarrow.compute as pc

from batchyard import output_lines
from batchyard.errors import NotFoundError, RequestError, UnavailableError
from store import files, segments
from store.artifacts import Artifacts
from store.formats.chunks import read as read_chunk
from store.formats.lines import MAX_LINE_BYTES
from store.formats.results import AnswerReader, Row, readable, take_row
from store.records import Batch
from tasks.context import AppContext
from tasks.finishing import result_stream, stage_input

log = logging.getLogger(__name__)

EXAMPLES = 3
# Limits: input read to find lines, error lines that are counted, requests of one preview, result chunks with errors.
MAX_INPUT_BYTES = 32 * 1024 * 1024
MAX_ERRORS = 10_000
MAX_ERROR_BYTES = 16 * 1024 * 1024
MAX_BYTES = 4 * 1024 * 1024
MAX_CHUNKS = 10


class Cursor(NamedTuple):
    """Start of a preview of an ended batch: lines of the input before it, and bytes of each file before it."""

    lines: int = 0
    source: int = 0
    output: int = 0
    errors: int = 0


def in_order(context: AppContext, batch: Batch, cursor: Cursor, limit: int) -> tuple[list[Row], Cursor | None]:
    """Return at most `limit` requests of an ended batch in input order, and the cursor of the next ones or None.

    Raises:
        NotFoundError: the input was deleted or has expired.
        RequestError: the cursor is none that this function returned.
        UnavailableError: a file cannot be read.
    """
    with context.database.read() as session:
        file_ids = (batch.input_file_id, batch.output_file_id, batch.error_file_id)
        records = [files.find(session, batch.project_id, file_id) if file_id else None for file_id in file_ids]
    if records[0] is None:
        raise NotFoundError("The input file of this batch was deleted or has expired.")
    contents = [*(file.sha256 if file else None for file in records), batch.seconds_sha256]
    with ExitStack() as opened:
        source, output, errors, seconds = (
            opened.enter_context(context.artifacts.open(sha256)) if sha256 else None for sha256 in contents
        )
        assert source is not None
        try:
            source.seek(cursor.source)
            readers = [
                AnswerReader(file, offset, MAX_LINE_BYTES)
                for file, offset in ((output, cursor.output), (errors, cursor.errors))
            ]
            return _side_by_side(source, readers, seconds, cursor.lines, limit)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, OverflowError):
            raise RequestError("There is no such place in this batch.", code="invalid_value", param="at") from None


def _side_by_side(
    source: IO[bytes], readers: Sequence[AnswerReader], seconds: IO[bytes] | None, lines: int, limit: int
) -> tuple[list[Row], Cursor | None]:
    rows: list[Row] = []
    at, began = source.tell(), source.tell()
    while (raw := source.readline(MAX_LINE_BYTES)) and len(rows) < limit and at - began < MAX_BYTES:
        at, lines = at + len(raw), lines + 1
        if raw.strip():
            row = take_row(lines, raw, readers, seconds)
            if row is not None:
                rows.append(row)
    return rows, Cursor(lines, at, *(reader.offset for reader in readers)) if raw else None


def as_they_came(context: AppContext, batch: Batch, after: int, limit: int) -> tuple[list[Row], int | None]:
    """Return at most `limit` answers after the first `after`, in the order in which they were appended, and the next
    `after` or None.

    A request too far down in the input has an empty body.
    """
    with context.database.read() as session:
        chunks = segments.chunks(session, batch.id)
    available = sum(rows for _, rows in chunks)
    stop = min(after + limit, available)
    tables = result_stream.tables(context.artifacts, chunks, after, stop, ["line", "answer", "seconds"])
    answers = {entry["line"]: entry for table in tables for entry in table.to_pylist()}
    if batch.input_sha256:
        bodies = _bodies(context.artifacts, batch.input_sha256, answers)
    else:
        bodies = _planned(context, batch, answers)
    rows = []
    for line, entry in answers.items():
        answer = orjson.loads(entry["answer"])
        rows.append(Row.of(line, answer["custom_id"] or "", bodies.get(line, {}), answer, entry["seconds"]))
    return rows, stop if stop < available else None


def _bodies(artifacts: Artifacts, sha256: str, lines: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the request bodies on these lines of an input, within its first MAX_INPUT_BYTES."""
    missing = set(lines)
    bodies: dict[int, dict[str, Any]] = {}
    with artifacts.open(sha256) as source:
        for number, raw in _first_lines(source):
            if not missing:
                break
            if number in missing:
                missing.remove(number)
                bodies[number] = readable(raw)[1]
    return bodies


def _planned(context: AppContext, batch: Batch, lines: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the request bodies on these lines of a batch that has no input yet, in its first MAX_INPUT_BYTES."""
    with context.database.read() as session:
        plans = segments.plans(session, batch.id)
    missing, remaining = set(lines), MAX_INPUT_BYTES
    bodies: dict[int, dict[str, Any]] = {}
    for table in stage_input.requests(context.artifacts, plans):
        if not missing or remaining <= 0:
            break
        remaining -= table.nbytes
        for number, body in zip(table["line"].to_pylist(), table["body"].to_pylist(), strict=True):
            if number in missing:
                missing.remove(number)
                bodies[number] = orjson.loads(body)
    return bodies


def _first_lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    remaining, number = MAX_INPUT_BYTES, 0
    while remaining > 0 and (raw := source.readline(MAX_LINE_BYTES)):
        remaining, number = remaining - len(raw), number + 1
        yield number, raw


@dataclass
class Example:
    """One request that failed. `line` is None if it is too far down in the input."""

    line: int | None
    custom_id: str
    message: str


@dataclass
class Failures:
    """Requests that failed with the same code."""

    code: str
    count: int = 0
    examples: list[Example] = field(default_factory=list)


class Problems(NamedTuple):
    """Failures by code, the most frequent first, in the first `seen` failed requests."""

    groups: tuple[Failures, ...]
    seen: int


def of_validation(errors: Iterable[Mapping[str, Any]]) -> Problems:
    """Return the problems of an invalid input, from the errors that validation reported."""
    return _grouped((entry["code"], Example(entry["line"], "", entry["message"])) for entry in errors)


def of_running(context: AppContext, batch: Batch) -> Problems:
    """Return the latest failures of a batch that has not ended."""
    with context.database.read() as session:
        chunks = segments.failing(session, batch.id, MAX_CHUNKS)
    return _grouped(entry for sha256 in chunks for entry in _failed(context.artifacts, sha256))


def _failed(artifacts: Artifacts, sha256: str) -> Iterator[tuple[str, Example]]:
    for table in read_chunk(artifacts, sha256):
        for entry in table.filter(pc.invert(table["ok"])).to_pylist():
            answer = orjson.loads(entry["answer"])
            code, message = output_lines.reason(answer)
            yield code, Example(entry["line"], answer["custom_id"] or "", message)


@functools.lru_cache(maxsize=64)
def of_file(artifacts: Artifacts, errors_sha256: str, source_sha256: str) -> Problems:
    """Return the failures of an ended batch, from its error file, with line numbers if its input still exists.

    Raises:
        UnavailableError: the error file cannot be read.
    """
    with artifacts.open(errors_sha256) as file:
        problems = _grouped(_of_lines(file))
    examples = {
        example.custom_id: example for group in problems.groups for example in group.examples if example.line is None
    }
    try:
        with artifacts.open(source_sha256) as source:
            for number, raw in _first_lines(source):
                if not examples:
                    break
                if raw.strip() and (example := examples.pop(readable(raw)[0], None)):
                    example.line = number
    except UnavailableError as error:
        log.info("failed requests are shown without their lines: %s", error)
    return problems


def _of_lines(file: IO[bytes]) -> Iterator[tuple[str, Example]]:
    remaining = MAX_ERROR_BYTES
    for _ in range(MAX_ERRORS):
        raw = file.readline(MAX_LINE_BYTES)
        remaining -= len(raw)
        if not raw or remaining < 0:
            return
        answer = orjson.loads(raw)
        code, message = output_lines.reason(answer)
        yield code, Example(output_lines.invalid_line(answer), answer["custom_id"] or "", message)


def _grouped(failures: Iterable[tuple[str, Example]]) -> Problems:
    groups: dict[str, Failures] = {}
    seen = 0
    for code, example in failures:
        seen += 1
        group = groups.setdefault(code, Failures(code))
        group.count += 1
        if len(group.examples) < EXAMPLES:
            group.examples.append(example)
    return Problems(tuple(sorted(groups.values(), key=lambda group: -group.count)), seen)
