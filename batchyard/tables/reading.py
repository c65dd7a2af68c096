"""Reads the rows of a table from a file, one by one; memory never holds the file.

A table of text is UTF-8; a byte order mark is skipped. Lines end with a line feed, which a carriage return may precede.
txt: a line is a row, with the column `prompt`. prompts: so is what stands between two lines `---`. jsonl: an object, or
a text, which is a `prompt`. In these, blank lines are no rows. csv, tsv: the first line has the names. Cells are texts,
`NA` and `null` too. A blank line is a row where the table has one column. The columns of csv may also stand between
semicolons or tabs, as spreadsheets of some countries write it: the first line tells.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Collection, Iterator
from typing import IO, Any, NamedTuple

import orjson

from batchyard import json_lines
from batchyard.json_lines import MAX_LINE_BYTES
from batchyard.tables import parquet
from batchyard.tables.formats import DELIMITERS, Format, TableError
from batchyard.tables.json_text import half_character, not_a_number
from batchyard.tables.parquet import Picked

RULE = "---"
"""The line between two prompts of several lines."""
MAX_PARQUET_BYTES = 200 * 2**20
_OTHER_DELIMITERS = (";", "\t")
_CHUNK = 1 << 20
_UNLIMITED = 2**31 - 1
_SEPARATOR = re.compile(r'"?sep=([^"\r\n])"?\r?\n?', re.IGNORECASE)
"""The line by which Excel tells itself the delimiter."""


class TableRow(NamedTuple):
    """A row, or the problem in its place."""

    # Of the file, from 1: where the row ends, or begins if it is one of `prompts`. Of Parquet the row, from 1.
    line: int
    values: dict[str, Any]  # by column
    problem: str | None = None  # why it cannot be read, as what follows "Line 3"
    code: str = "invalid_value"  # of the problem: `invalid_value` or `line_too_long`


def rows(
    file: IO[bytes],
    kind: Format,
    *,
    max_line_bytes: int = MAX_LINE_BYTES,
    null_values: Collection[str] = (),
    pick: Picked | None = None,
    max_bytes: int | None = MAX_PARQUET_BYTES,
) -> Iterator[TableRow]:
    """Yield the rows of a table.

    Args:
        max_line_bytes: most bytes of a line, of csv, prompts and Parquet of a row.
        null_values: cells of csv and tsv that have no value, such as NA.
        pick: returns which columns of Parquet are needed; the others are not read.
        max_bytes: most bytes of the values of Parquet; None: the file is trusted.

    Raises TableError: the rest of the file cannot be read.
    """
    if kind == "parquet":
        for number, values in enumerate(parquet.rows(file, max_line_bytes, pick, max_bytes), 1):
            if values is None:
                yield TableRow(number, {}, f"is longer than {max_line_bytes} bytes", "line_too_long")
            else:
                yield TableRow(number, values)
        return
    lines = _Lines(file, max_line_bytes)
    if kind in DELIMITERS:
        yield from _cells(lines, DELIMITERS[kind], frozenset(null_values))
    else:
        yield from _READERS[kind](lines)


class _Lines:
    """Lines of a file without a byte order mark; too long ones are skipped."""

    def __init__(self, file: IO[bytes], max_bytes: int) -> None:
        self._file = file
        self.max_bytes = max_bytes
        self.number = 0  # of the line, from 1
        self.too_long = False  # the line is too long, and returned as its first bytes
        self.balanced = True  # the line, all of it, has an even number of quotes

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(self.max_bytes + 1):
            self.number += 1
            if self.number == 1:
                line = json_lines.without_mark(line)
            self.too_long = len(line) > self.max_bytes
            if self.too_long:
                quotes, rest = line.count(b'"'), line
                while rest and not rest.endswith(b"\n"):
                    rest = self._file.readline(_CHUNK)
                    quotes += rest.count(b'"')
                self.balanced = quotes % 2 == 0
            yield line

    def problem(self, line: bytes) -> tuple[str, str] | None:
        if self.too_long:
            return f"is longer than {self.max_bytes} bytes", "line_too_long"
        if self.number == 1 and (encoding := json_lines.other_encoding(line)):
            return f"begins with a byte order mark of {encoding}; save the file as UTF-8", "invalid_value"
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return f"is not UTF-8: {error.reason}; save the file as UTF-8", "invalid_value"
        return None


def _texts(lines: _Lines) -> Iterator[TableRow]:
    for line in lines:
        if problem := lines.problem(line):
            yield TableRow(lines.number, {}, *problem)
        elif (text := line.decode().rstrip("\r\n")).strip():
            yield TableRow(lines.number, {"prompt": text})


def _blocks(lines: _Lines) -> Iterator[TableRow]:
    first, size = 1, 0
    block, problem = list[str](), None
    for line in lines:
        is_rule = line.rstrip() == RULE.encode()
        size += len(line)
        problem = problem or lines.problem(line)
        if size > lines.max_bytes:
            problem, block = (f"is longer than {lines.max_bytes} bytes", "line_too_long"), []
        if not is_rule:
            if problem is None:
                block.append(line.decode().removesuffix("\n").removesuffix("\r"))
            continue
        if row := _block(first, block, problem):
            yield row
        block, problem, first, size = [], None, lines.number + 1, 0
    if row := _block(first, block, problem):
        yield row


def _block(first: int, lines: list[str], problem: tuple[str, str] | None) -> TableRow | None:
    if problem is not None:
        return TableRow(first, {}, *problem)
    text = "\n".join(lines).strip("\n")
    return TableRow(first, {"prompt": text}) if text else None


def _objects(lines: _Lines) -> Iterator[TableRow]:
    for line in lines:
        if not line.strip() and not lines.too_long:
            continue
        value: Any = None
        problem = lines.problem(line)
        if problem is None:
            try:
                value = json_lines.read(line)
            except orjson.JSONDecodeError as error:
                constant, half = not_a_number(line), half_character(line)
                reason = f"cannot be used: {half}" if half else f"is not valid JSON: {error.msg}"
                problem = f"has {constant}" if constant else reason, "invalid_value"
        if isinstance(value, str):
            value = {"prompt": value}
        if problem is None and not isinstance(value, dict):
            problem = "is neither an object nor a string", "invalid_value"
        yield TableRow(lines.number, {}, *problem) if problem else TableRow(lines.number, value)


_READERS: dict[str, Callable[[_Lines], Iterator[TableRow]]] = {"txt": _texts, "prompts": _blocks, "jsonl": _objects}


class _CsvLines:
    """The lines of a csv file as its parser takes them, with a limit for a row.

    `problem`: problem and code of the row's lines.
    """

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self._iterator = iter(lines)
        self._pieces: Iterator[str] = iter(())
        self.begin()

    def begin(self) -> None:
        self.problem: tuple[str, str] | None = None
        self._size = 0
        self._first = self._lines.number + 1

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        for piece in self._pieces:
            return piece
        line = next(self._iterator)
        is_first, self._size = not self._size, self._size + len(line)
        if self._lines.too_long and is_first and self._lines.balanced:
            self.problem = self._lines.problem(line)
            return "\n"
        if self._size > self._lines.max_bytes:
            raise TableError(
                f"The row that begins on line {self._first} is longer than {self._lines.max_bytes} bytes; is a quote "
                "not closed?",
                "line_too_long",
            )
        self.problem = self.problem or self._lines.problem(line)
        text = line.decode(errors="replace")
        if "\r" in text.removesuffix("\r\n"):  # a carriage return alone ends a line, too
            self._pieces = iter(io.StringIO(text, newline=""))
            return next(self._pieces)
        return text


def _cells(lines: _Lines, delimiter: str, null_values: frozenset[str]) -> Iterator[TableRow]:
    csv.field_size_limit(_UNLIMITED)  # the limit is that of rows
    source = _CsvLines(lines)
    columns: list[str] = []
    try:
        first = next(source, "")
        if said := _SEPARATOR.fullmatch(first):
            delimiter, first = said[1], next(source, "")
        else:
            others = _OTHER_DELIMITERS if delimiter == "," else ()
            delimiter = next(
                (each for each in (delimiter, *others) for cells in csv.reader([first], delimiter=each) if cells[1:]),
                delimiter,
            )
        reader = csv.reader(itertools.chain([first], source), delimiter=delimiter, strict=True)
        for cells in reader:
            problem = source.problem
            source.begin()
            if not columns:
                if problem is not None:
                    raise TableError(f"The first line {problem[0]}", problem[1])
                if len(set(cells)) < len(cells):
                    raise TableError(f"In the first line two columns have one name: {', '.join(cells)}")
                columns = cells
                continue
            if not cells and problem is None:
                if len(columns) > 1:
                    continue
                cells = [""]
            if problem is None and len(cells) != len(columns):
                problem = f"has not {len(columns)} columns as the first line has", "invalid_value"
            if problem is not None:
                yield TableRow(lines.number, {}, *problem)
            else:
                values = (None if cell in null_values else cell for cell in cells)
                yield TableRow(lines.number, dict(zip(columns, values, strict=True)))
    except csv.Error as error:
        raise TableError(f"The table is not valid CSV after line {lines.number}: {error}") from None
