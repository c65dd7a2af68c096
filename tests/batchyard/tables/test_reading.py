"""One reader of tables: as many rows as a file has, each bad row by its line, memory for a row."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.tables import formats, reading
from batchyard.tables.formats import Format, TableError

LIMIT = 200
KINDS: list[Format] = ["txt", "prompts", "csv", "tsv", "jsonl"]


def read(content: bytes, kind: Format, **options: Any) -> list[Any]:
    """The values of each row, or line and problem."""
    rows = reading.rows(io.BytesIO(content), kind, **options)
    return [row.values if row.problem is None else f"{row.line}: {row.problem}" for row in rows]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_blank_line_of_a_table_with_one_column_is_a_row(kind: Format) -> None:
    content = b"text\nThe soup was cold.\n\nLovely staff.\n"
    assert read(content, kind) == [{"text": "The soup was cold."}, {"text": ""}, {"text": "Lovely staff."}]
    assert len(read(b"text\n\n\n", kind)) == 2


def test_a_blank_line_of_a_table_with_more_columns_is_none() -> None:
    assert read(b"\na,b\n1,2\n\n3,4\n", "csv") == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


@pytest.mark.parametrize("said", ["sep=;\n", "sep=;\r\n", '"sep=;"\n', "\ufeffsep=;\n"])
def test_the_line_by_which_excel_names_the_delimiter_is_none_of_the_table(said: str) -> None:
    table = f'{said}text;n\n"a;b";1\n2;3;4\n'
    assert read(table.encode(), "csv") == [{"text": "a;b", "n": "1"}, "4: has not 2 columns as the first line has"]
    assert read(b"sep=\n1\n", "csv") == [{"sep=": "1"}]


def test_a_time_of_a_zone_that_this_machine_lacks_is_one_cell_that_cannot_be_read() -> None:
    file = io.BytesIO()
    times = pa.array([0, None], pa.timestamp("s", "Mars/Base"))
    pq.write_table(pa.table({"text": ["a", "b"], "at": times}), file)
    first, second = read(file.getvalue(), "parquet")
    assert (first["text"], str(first["at"].reason)) == ("a", "cannot be read: 'Mars/Base'")
    assert second == {"text": "b", "at": None}


def test_na_is_a_text_unless_it_is_said_to_be_empty() -> None:
    content = b"country,text\nNA,Kapana\nDE,null\n"
    assert read(content, "csv") == [{"country": "NA", "text": "Kapana"}, {"country": "DE", "text": "null"}]
    assert read(content, "csv", null_values=["NA", "null"]) == [
        {"country": None, "text": "Kapana"},
        {"country": "DE", "text": None},
    ]


@pytest.mark.parametrize(
    ("kind", "content", "values"),
    [
        ("csv", b'a\tb,c\n"x\ny",2\n', [{"a\tb": "x\ny", "c": "2"}]),
        ("tsv", b'a,b\tc\n"x\ny"\t2\n', [{"a,b": "x\ny", "c": "2"}]),
        ("csv", b"a,b\r\n1,2\r\n", [{"a": "1", "b": "2"}]),
        ("csv", b"a,b\r1,2\r", [{"a": "1", "b": "2"}]),
        ("jsonl", b'{"a": 1}\n\n"x"\r\n', [{"a": 1}, {"prompt": "x"}]),
        ("txt", "one\n \ntwo\u2028still two\r\n".encode(), [{"prompt": "one"}, {"prompt": "two\u2028still two"}]),
        ("prompts", b"\na\n\nb\n---\n---\r\nc --- d\r\n ---\r\n", [{"prompt": "a\n\nb"}, {"prompt": "c --- d\n ---"}]),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_each_format_has_its_rows_with_and_without_a_byte_order_mark(
    kind: Format, content: bytes, values: list[Any], mark: bytes
) -> None:
    assert read(mark + content, kind) == values


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_csv_file_may_have_the_delimiter_of_another_country(delimiter: str) -> None:
    content = 'id;"a; b";text\n1;"x;\ny";2,5\n'.replace(";", delimiter).encode()
    assert read(content, "csv") == [{"id": "1", f"a{delimiter} b": f"x{delimiter}\ny", "text": "2,5"}]


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (b"text\na; b\n", [{"text": "a; b"}]),
        (b"a;b,c\n1;2,3\n", [{"a;b": "1;2", "c": "3"}]),
        (b'"a;b"\n1;2\n', [{"a;b": "1;2"}]),
    ],
)
def test_a_semicolon_that_parts_no_columns_is_text(content: bytes, values: list[Any]) -> None:
    assert read(content, "csv") == values


@pytest.mark.parametrize(
    ("kind", "content", "bad"),
    [
        ("csv", b"a,b\n1,2\n3\n4,5\n", "3: has not 2 columns as the first line has"),
        ("csv", b"a,b\n1,2\n\xff,2\n4,5\n", "3: is not UTF-8: invalid start byte; save the file as UTF-8"),
        ("csv", b"a,b\n1,2\n" + b"x" * LIMIT + b",2\n4,5\n", f"3: is longer than {LIMIT} bytes"),
        ("txt", b"a\nb\xff\nc", "2: is not UTF-8: invalid start byte"),
        ("txt", b"a\n" + b"b" * (LIMIT + 1) + b"\nc", f"2: is longer than {LIMIT} bytes"),
        ("prompts", b"a\n---\n" + b"b\n" * LIMIT + b"---\nc", f"3: is longer than {LIMIT} bytes"),
        ("jsonl", b'"a"\n{nope\n"c"\n', "2: is not valid JSON: unexpected character, expected a string key"),
        ("jsonl", b'"a"\n{"x": NaN}\n"c"\n', "2: has NaN at 'x'. NaN is not JSON; write null or leave it out"),
        ("jsonl", b'"a"\n[1]\n"c"\n', "2: is neither an object nor a string"),
        (
            "jsonl",
            b'"a"\n{"text": "\\ud83d"}\n"c"\n',
            "2: cannot be used: column text has half of a character (a lone surrogate), which is no text",
        ),
        ("jsonl", b'"a"\n' + b"[" * 150 + b"\n" + b'"c"\n', "2: is not valid JSON"),
        ("jsonl", b'"a"\n"' + b"b" * LIMIT + b'"\n"c"', f"2: is longer than {LIMIT} bytes"),
    ],
)
def test_a_bad_row_is_told_by_its_line_and_the_others_are_read(kind: Format, content: bytes, bad: str) -> None:
    first, problem, last = read(content, kind, max_line_bytes=LIMIT)
    assert isinstance(first, dict) and isinstance(last, dict)
    assert problem.startswith(bad)


@pytest.mark.parametrize("kind", ["txt", "prompts", "jsonl"])
def test_a_file_of_another_encoding_is_told_how_to_save_it(kind: Format) -> None:
    problem, *_ = read("prompt".encode("utf-16"), kind)
    assert problem == "1: begins with a byte order mark of UTF-16; save the file as UTF-8"


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("csv", b'a,b\n1,"2\n', "not valid CSV after line 2"),
        ("csv", b"a,a\n1,2\n", "two columns have one name: a, a"),
        ("csv", b"a\xff\n1\n", "The first line is not UTF-8"),
        (
            "csv",
            "a\n1\n".encode("utf-16"),
            "The first line begins with a byte order mark of UTF-16; save the file as UTF-8",
        ),
        ("csv", b'a,b\n1,"' + b"x\n" * LIMIT, f"begins on line 2 is longer than {LIMIT} bytes; is a quote not closed?"),
        ("parquet", b"PAR1", "not Parquet"),
    ],
)
def test_a_file_of_which_no_more_can_be_read_says_where(kind: Format, content: bytes, message: str) -> None:
    with pytest.raises(TableError, match=message.replace("?", r"\?")):
        read(content, kind, max_line_bytes=LIMIT)


@given(
    kind=st.sampled_from(KINDS), content=st.binary() | st.text(st.sampled_from('a,"\n\r\t{}[]:-\\ud')).map(str.encode)
)
def test_whatever_bytes_a_file_has_each_row_is_read_or_told_by_its_line(kind: Format, content: bytes) -> None:
    last = 0
    try:
        for row in reading.rows(io.BytesIO(content), kind, max_line_bytes=20):
            assert 1 <= row.line <= content.count(b"\n") + 1
            assert row.line >= last, "in the order of the file"
            last = row.line
    except TableError as error:
        assert error.message


def test_parquet_reads_the_picked_columns_only() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1, None], "b": [b"x", b"y"]}), file)
    assert read(file.getvalue(), "parquet", pick=lambda names: names[:1]) == [{"a": 1}, {"a": None}]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.csv", ("a", "csv", None)),
        ("a.TSV", ("a", "tsv", None)),
        ("a.b.ndjson.gz", ("a.b", "jsonl", "gzip")),
        ("a.txt.zst", ("a", "txt", "zstd")),
        ("a.parquet", ("a", "parquet", None)),
        ("a.parquet.gz", None),
        ("a.xlsx", None),
        ("gz", None),
    ],
)
def test_a_name_says_format_and_compression(name: str, kind: Any) -> None:
    assert formats.kind_of(name) == kind


def test_a_compressed_file_is_read_up_to_a_limit() -> None:
    content = gzip.compress(b"prompt\n1\n") + gzip.compress(b"2\n")
    assert read(formats.decompressed(io.BytesIO(content), "gzip").read(), "csv") == [{"prompt": "1"}, {"prompt": "2"}]
    with pytest.raises(TableError, match="more than 5 bytes") as refusal:
        formats.decompressed(io.BytesIO(content), "gzip", 5).read()
    assert refusal.value.code == "file_too_large"
    with pytest.raises(TableError, match="cannot be decompressed"):
        formats.decompressed(io.BytesIO(b"prompt\n"), "zstd").read()


class Counting(io.RawIOBase):
    """A long file that counts what was read."""

    def __init__(self, line: bytes, lines: int) -> None:
        self._line, self._left, self.size = line, lines, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(self._left, len(buffer) // len(self._line))
        self._left -= count
        content = self._line * count
        buffer[: len(content)] = content
        self.size += len(content)
        return len(content)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_while_the_file_is_read(kind: Format) -> None:
    line = b'{"a": 1}\n' if kind == "jsonl" else b"---\na\n"
    source = Counting(line, 1_000_000)
    next(iter(reading.rows(io.BufferedReader(source, 8192), kind)))
    assert source.size < 100_000


def parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", **options)
    return file.getvalue()


def shared(value: str | bytes, times: int) -> pa.DictionaryArray:
    """A column that names one value many times."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), [value])


LONG = "a" * 5_000_000
BOMBS: dict[str, Callable[[], bytes]] = {
    "a cell": lambda: parquet(pa.table({"text": ["a" * 150_000_000]})),
    "many cells": lambda: parquet(pa.table({"text": [LONG] * 50}), use_dictionary=False),
    "a shared value": lambda: parquet(pa.table({"text": shared(LONG, 100_000)}), dictionary_pagesize_limit=2**30),
    "a shared value in lists": lambda: parquet(
        pa.table({"text": pa.ListArray.from_arrays([0, 10**6], pa.array(["a" * 300] * 10**6))})
    ),
    "a repeated beginning": lambda: parquet(
        pa.table({"text": [LONG] * 50}), use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}
    ),
    "runs of numbers": lambda: parquet(pa.table({"text": pa.array([[1] * 30_000_000], pa.list_(pa.int8()))})),
    "nulls": lambda: parquet(pa.table({"text": pa.nulls(30_000_000, pa.string())})),
}


@pytest.mark.long
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_of_parquet_makes_no_large_table(bomb: str) -> None:
    content = BOMBS[bomb]()
    assert len(content) < 200_000
    before = pa.total_allocated_bytes()
    with pytest.raises(TableError) as refused:
        for row in reading.rows(io.BytesIO(content), "parquet", max_bytes=100_000_000):
            assert row.problem is not None or len(row.values["text"] or "") <= len(LONG)
            assert pa.total_allocated_bytes() - before < 400_000_000
    assert refused.value.code == ("invalid_value" if "cell" in bomb else "file_too_large")


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"data_page_version": "2.0"}])
def test_a_row_of_parquet_that_is_too_long_has_a_problem(options: dict[str, Any]) -> None:
    words = pa.array([["b"], ["c" * 150, "d" * 60], None], pa.list_(pa.string()))
    table = pa.table({"text": ["a", "b", "a" * 300], "words": words})
    assert read(parquet(table, **options), "parquet", max_line_bytes=LIMIT) == [
        {"text": "a", "words": ["b"]},
        "2: is longer than 200 bytes",
        "3: is longer than 200 bytes",
    ]
    picked = read(parquet(table, **options), "parquet", max_line_bytes=LIMIT, pick=lambda _: ["text"])
    assert picked == [{"text": "a"}, {"text": "b"}, "3: is longer than 200 bytes"]


def test_all_types_of_parquet_are_read_within_limits() -> None:
    kinds: dict[str, pa.Array] = {
        "map": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string())),
        "fixed": pa.array([[1.5, 2.5], None], pa.list_(pa.float32(), 2)),
        "struct": pa.array([{"a": {"b": ["c"]}}, None]),
        "decimal": pa.array(["1.5", None]).cast(pa.decimal128(9, 2)),
        "date": pa.array([0, None], pa.date32()),
        "bytes": pa.array([b"a", None], pa.large_binary()),
        "category": shared("a", 2),
        "a.b": pa.array([True, None]),
    }
    table = pa.table(kinds)
    assert read(parquet(table), "parquet") == table.to_pylist()


def test_a_damaged_file_of_parquet_is_refused_or_read_and_ends_no_process() -> None:
    table = pa.table({"a": [f"{number % 7}" for number in range(99)], "b": [[number, 2] for number in range(99)]})
    files = [parquet(table), parquet(table, use_dictionary=False, data_page_version="2.0", data_page_size=200)]
    chance, outcomes = random.Random(1), set[bool]()
    for number in range(600):
        content = bytearray(files[number % 2])
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            outcomes.add(len(read(bytes(content), "parquet", max_bytes=10**7)) >= 0)
        except TableError:
            outcomes.add(False)
    assert outcomes == {True, False}
