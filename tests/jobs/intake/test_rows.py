"""The rows of an input in any of its formats, and as Arrow tables."""

from __future__ import annotations

import gzip
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard.errors import RequestError
from batchyard.settings import Settings
from jobs.intake.rows import RowError, rows, tables


def read(content: bytes, name: str) -> list[Any]:
    return [row.message if isinstance(row, RowError) else row for row in rows(io.BytesIO(content), name)]


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"prompt": "2+2", "answer": "4"}\n\n{"prompt": "3+3", "answer": "6"}\n'),
        ("a.csv", b"prompt,answer\n2+2,4\n3+3,6\n"),
        ("a.parquet", parquet(prompt=["2+2", "3+3"], answer=["4", "6"])),
        ("a.tsv", b"prompt\tanswer\n2+2\t4\n3+3\t6\n"),
        ("a.csv.gz", gzip.compress(b"prompt,answer\n2+2,4\n3+3,6\n", mtime=0)),
        ("a.NDJSON", b'\xef\xbb\xbf{"prompt": "2+2", "answer": "4"}\n{"prompt": "3+3", "answer": "6"}\n'),
    ],
)
def test_every_format_gives_the_same_rows(name: str, content: bytes) -> None:
    assert read(content, name) == [{"prompt": "2+2", "answer": "4"}, {"prompt": "3+3", "answer": "6"}]


def test_a_text_file_has_a_prompt_a_line_and_lines_end_at_line_feeds_only() -> None:
    assert read("one\n\ntwo\u2028still two\r\n".encode(), "a.TXT") == [
        {"prompt": "one"},
        {"prompt": "two\u2028still two"},
    ]


def test_a_line_that_is_a_text_is_a_prompt() -> None:
    assert read(b'"hello"\n', "a.jsonl") == [{"prompt": "hello"}]


def test_a_bad_line_is_an_error_in_its_place() -> None:
    first, error, last, number = read(b'{"a": 1}\nno\n{"a": 2}\n7\n', "a.jsonl")
    assert (first, last) == ({"a": 1}, {"a": 2})
    assert error.startswith("The row is not valid JSON")
    assert number == "The row is neither an object nor a string."


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlsx", b"", "'a.xlsx' has none of the formats .txt, .prompts, .csv, .tsv, .jsonl, .ndjson, .parquet"),
        ("a.parquet", b"no parquet", "The file is not Parquet"),
        ("a.csv", b'a,b\n"1,2\n', "The table is not valid CSV after line"),
        ("a.csv", b"\xff\n1\n", "The first line is not UTF-8"),
        ("a.csv.gz", b"prompt\n1\n", "cannot be decompressed"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(name: str, content: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read(content, name)


def test_a_compressed_file_is_read_up_to_a_limit() -> None:
    with pytest.raises(RequestError, match="more than 9 bytes") as refusal:
        list(rows(io.BytesIO(gzip.compress(b"prompt\n1\n2\n")), "a.csv.gz", Settings(max_file_bytes=9)))
    assert refusal.value.code == "file_too_large"


def test_a_parquet_file_keeps_its_types() -> None:
    content = parquet(id=pa.array([1, 2], pa.int8()), tags=[["x"], ["y", "z"]])
    (table,) = tables(io.BytesIO(content), "a.parquet")
    assert table.schema.field("id").type == pa.int8()
    assert table.schema.field("tags").type == pa.list_(pa.string())


def test_values_of_several_types_become_texts() -> None:
    (table,) = tables(io.BytesIO(b'{"a": 1, "b": 1}\n{"a": "x", "b": 2.5}\n'), "a.jsonl")
    assert table["a"].to_pylist() == ["1", "x"]
    assert table["b"].to_pylist() == [1.0, 2.5]


def test_all_tables_of_a_file_have_one_schema() -> None:
    lines = [b'{"a": 1}\n'] * 5000 + [b'{"a": 1.5, "b": "late"}\n']
    read_tables = list(tables(io.BytesIO(b"".join(lines)), "a.jsonl"))
    assert len(read_tables) == 2
    assert len({str(table.schema) for table in read_tables}) == 1
    assert read_tables[-1]["b"].to_pylist()[-1] == "late"
