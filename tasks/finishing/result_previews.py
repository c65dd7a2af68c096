"""Excerpts of a batch for people to look at: a few requests with their answers, and what went wrong how often.

Each is read in time and memory that do not grow with the batch.
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
from store.formats.results import AnswerReader, Row, take_answer
from store.records import Batch
from tasks.context import AppContext
from tasks.finishing import result_stream

log = logging.getLogger(__name__)

EXAMPLES = 3
# What is read at most: of the input to find lines, of errors to count them, and for the requests of one excerpt.
MAX_INPUT_BYTES = 32 * 1024 * 1024
MAX_ERRORS = 10_000
MAX_ERROR_BYTES = 16 * 1024 * 1024
MAX_BYTES = 4 * 1024 * 1024
MAX_CHUNKS = 10


class Cursor(NamedTuple):
    """Where an excerpt of an ended batch begins: lines before it in the input, and bytes before it in each file."""

    lines: int = 0
    source: int = 0
    output: int = 0
    errors: int = 0


def in_order(context: AppContext, batch: Batch, place: Cursor, limit: int) -> tuple[list[Row], Cursor | None]:
    """Requests of an ended batch in input order, from a place on, at most `limit`; the place after them, if any follow.

    Raises:
        NotFoundError: the input was deleted or has expired.
        RequestError: there is no such place.
        UnavailableError: a file cannot be read.
    """
    with context.database.read() as session:
        named = (batch.input_file_id, batch.output_file_id, batch.error_file_id)
        found = [files.find(session, batch.project_id, name) if name else None for name in named]
    if found[0] is None:
        raise NotFoundError("The input file of this batch was deleted or has expired.")
    with ExitStack() as opened:
        source, output, errors = (
            opened.enter_context(context.artifacts.open(file.sha256)) if file else None for file in found
        )
        assert source is not None
        try:
            source.seek(place.source)
            readers = [
                AnswerReader(file, offset, MAX_LINE_BYTES)
                for file, offset in ((output, place.output), (errors, place.errors))
            ]
            return _side_by_side(source, readers, place.lines, limit)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, OverflowError):
            raise RequestError("There is no such place in this batch.", code="invalid_value", param="at") from None


def _side_by_side(
    source: IO[bytes], readers: Sequence[AnswerReader], lines: int, limit: int
) -> tuple[list[Row], Cursor | None]:
    rows: list[Row] = []
    at, began = source.tell(), source.tell()
    while (raw := source.readline(MAX_LINE_BYTES)) and len(rows) < limit and at - began < MAX_BYTES:
        at, lines = at + len(raw), lines + 1
        if raw.strip():
            request = orjson.loads(raw)
            answer = take_answer(request["custom_id"], readers) or {}
            rows.append(Row.of(lines, request["custom_id"], request["body"], answer))
    return rows, Cursor(lines, at, *(reader.offset for reader in readers)) if raw else None


def as_they_came(context: AppContext, batch: Batch, after: int, limit: int) -> tuple[list[Row], int | None]:
    """Answers in the order in which they were given, from the one after the first `after` on, at most `limit`; how
    many there are with these, if more follow.

    The body of a request that stands too far down in the input is empty.
    """
    with context.database.read() as session:
        chunks = segments.chunks(session, batch.id)
    there = sum(rows for _, rows in chunks)
    stop = min(after + limit, there)
    found: dict[int, dict[str, Any]] = {}
    for table in result_stream.tables(context.artifacts, chunks, after, stop, ["line", "answer"]):
        found |= {entry["line"]: orjson.loads(entry["answer"]) for entry in table.to_pylist()}
    bodies = _bodies(context.artifacts, batch.input_sha256, found)
    rows = [Row.of(line, answer["custom_id"], bodies.get(line, {}), answer) for line, answer in found.items()]
    return rows, stop if stop < there else None


def _bodies(artifacts: Artifacts, sha256: str, lines: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The bodies of the requests on these lines of an input, as far down as is read."""
    wanted = set(lines)
    found: dict[int, dict[str, Any]] = {}
    with artifacts.open(sha256) as source:
        for number, raw in _first_lines(source):
            if not wanted:
                break
            if number in wanted:
                wanted.remove(number)
                found[number] = orjson.loads(raw)["body"]
    return found


def _first_lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    left, number = MAX_INPUT_BYTES, 0
    while left > 0 and (raw := source.readline(MAX_LINE_BYTES)):
        left, number = left - len(raw), number + 1
        yield number, raw


@dataclass
class Example:
    """One request that failed. `line` is None where it stands too far down in the input."""

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
    """What went wrong, the most frequent first, in the `seen` failed requests that were looked at."""

    groups: tuple[Failures, ...]
    seen: int


def of_validation(errors: Iterable[Mapping[str, Any]]) -> Problems:
    """What is wrong with an input that cannot run, from what validation has reported."""
    return _grouped((entry["code"], Example(entry["line"], "", entry["message"])) for entry in errors)


def of_running(context: AppContext, batch: Batch) -> Problems:
    """What went wrong lately in a batch that has not ended."""
    with context.database.read() as session:
        chunks = segments.failing(session, batch.id, MAX_CHUNKS)
    return _grouped(entry for sha256 in chunks for entry in _failed(context.artifacts, sha256))


def _failed(artifacts: Artifacts, sha256: str) -> Iterator[tuple[str, Example]]:
    table = read_chunk(artifacts, sha256)
    for entry in table.filter(pc.invert(table["ok"])).to_pylist():
        answer = orjson.loads(entry["answer"])
        code, message = output_lines.reason(answer)
        yield code, Example(entry["line"], answer["custom_id"], message)


@functools.lru_cache(maxsize=64)
def of_file(artifacts: Artifacts, errors_sha256: str, source_sha256: str) -> Problems:
    """What went wrong in an ended batch, from its error file, with lines if its input is still there.

    Raises:
        UnavailableError: the error file cannot be read.
    """
    with artifacts.open(errors_sha256) as file:
        problems = _grouped(_of_lines(file))
    examples = {example.custom_id: example for group in problems.groups for example in group.examples}
    try:
        with artifacts.open(source_sha256) as source:
            for number, raw in _first_lines(source):
                if not examples:
                    break
                if raw.strip() and (example := examples.pop(orjson.loads(raw)["custom_id"], None)):
                    example.line = number
    except UnavailableError as error:
        log.info("failed requests are shown without their lines: %s", error)
    return problems


def _of_lines(file: IO[bytes]) -> Iterator[tuple[str, Example]]:
    left = MAX_ERROR_BYTES
    for _ in range(MAX_ERRORS):
        raw = file.readline(MAX_LINE_BYTES)
        left -= len(raw)
        if not raw or left < 0:
            return
        answer = orjson.loads(raw)
        code, message = output_lines.reason(answer)
        yield code, Example(None, answer["custom_id"], message)


def _grouped(found: Iterable[tuple[str, Example]]) -> Problems:
    groups: dict[str, Failures] = {}
    seen = 0
    for code, example in found:
        seen += 1
        group = groups.setdefault(code, Failures(code))
        group.count += 1
        if len(group.examples) < EXAMPLES:
            group.examples.append(example)
    return Problems(tuple(sorted(groups.values(), key=lambda group: -group.count)), seen)
