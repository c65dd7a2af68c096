"""Files of rows are read by their suffix and written whole or not at all."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard.client import tables
from batchyard.errors import ConfigurationError

ROWS: list[dict[str, Any]] = [{"id": "007", "text": 'two\nlines, "ä"'}, {"id": "1.50", "text": "NA"}]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.ndjson", "t.csv.gz", "t.jsonl.zst", "T.CSV"])
def test_rows_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    tables.write(tmp_path / name, ROWS)
    assert tables.read(tmp_path / name) == ROWS
    assert [file.name for file in tmp_path.iterdir()] == [name], "nothing half written stays"


def test_parquet_keeps_its_types_and_compressed_files_are_compressed(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "at": [None, 1.5]})
    tables.write(tmp_path / "t.parquet", table)
    assert tables.read(tmp_path / "t.parquet") == table
    tables.write(tmp_path / "u.parquet", [{"a": 1}, {"b": [2]}])
    assert pq.read_table(tmp_path / "u.parquet").to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": [2]}]
    tables.write(tmp_path / "t.csv.gz", table)
    assert gzip.decompress((tmp_path / "t.csv.gz").read_bytes()) == b"id,at\r\n1,\r\n2,1.5\r\n"


WEI = [{"wei": 123456789012345678901234, "n": 2**64 - 1}, {"wei": None, "n": -1}]


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.parquet"])
def test_an_integer_of_more_than_64_bits_keeps_its_digits_in_every_format(tmp_path: Path, name: str) -> None:
    tables.write(tmp_path / name, WEI)
    cells = [[str(row["wei"]), str(row["n"])] for row in tables.rows_of(tmp_path / name)]
    assert cells[0] == ["123456789012345678901234", "18446744073709551615"] and cells[1][1] == "-1"
    with pytest.raises(ConfigurationError, match="do not fit parquet"):
        tables.write(tmp_path / "t.parquet", [{"a": [2**70]}])


def test_only_cells_of_csv_are_empty_where_they_say_so_and_their_text_stays(tmp_path: Path) -> None:
    assert tables.cells(tmp_path / "t.csv", ROWS, ["NA"])[1] == {"id": "1.50", "text": None}
    assert tables.cells(tmp_path / "t.csv", ROWS, []) == tables.cells(tmp_path / "t.jsonl", ROWS, ["NA"]) == ROWS
    assert ROWS[1]["text"] == "NA"


def test_new_columns_stand_beside_the_old_ones() -> None:
    assert tables.beside([{"a": 1}], [{"b": 2}], "my_") == [{"a": 1, "my_b": 2}]
    beside = tables.beside(pa.table({"a": [1]}), pa.table({"b": [2]}), "")
    assert beside.to_pylist() == [{"a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xls", b"", "name it .txt, .prompts, .csv, .tsv, .jsonl, .ndjson, .parquet"),
        ("t.parquet.gz", b"", "name it .txt, .prompts, .csv, .tsv, .jsonl, .ndjson, .parquet"),
        ("t.csv", b"a,b\n1\n", "line 2 has not 2 columns"),
        ("t.csv", b"a,a\n1,2\n", "two columns have one name: a, a"),
        ("t.csv", b"a\n\xff\n", "line 2 is not UTF-8"),
        ("t.jsonl", b'{"a": 1}\n[]\n', "line 2 is neither an object nor a string"),
        ("t.jsonl", b'{"a": 1}\n{"a"\n', "line 2 is not valid JSON"),
        ("t.parquet", b"nothing", "is not parquet"),
        ("t.csv.gz", b"a,b\n", "t.csv.gz"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_its_name_and_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        tables.read(tmp_path / name)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("old")
    with pytest.raises(ConfigurationError, match="do not fit parquet"):
        tables.write(tmp_path / "t.parquet", [{"a": 1}, {"a": "text"}])
    assert (tmp_path / "t.parquet").read_text() == "old"
    with pytest.raises(ConfigurationError, match="name a file that can be written"):
        tables.write(tmp_path / "no folder" / "t.csv", ROWS)


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_binary_cells_are_written_as_text_that_can_be_read_back(name: str, tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n rest"
    tables.write(tmp_path / name, pa.table({"image": [png], "blob": [b"\xff"], "deep": [{"bytes": png}]}))
    (row,) = tables.read(tmp_path / name)
    deep = row["deep"] if isinstance(row["deep"], dict) else json.loads(row["deep"])
    assert base64.b64decode(row["image"].removeprefix("data:image/png;base64,")) == png
    assert (row["blob"], deep["bytes"]) == ("/w==", row["image"])


def test_a_cell_that_is_no_value_of_python_is_written_empty(tmp_path: Path) -> None:
    column = pa.array([2**62, 0], pa.timestamp("ms"))
    tables.write(tmp_path / "out.jsonl", pa.table({"day": column, "n": [1, 2]}))
    assert tables.read(tmp_path / "out.jsonl") == [{"day": None, "n": 1}, {"day": "1970-01-01T00:00:00", "n": 2}]
