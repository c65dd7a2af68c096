"""Rows say what became of each request of a batch, and where its lines are."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from batchyard.errors import BatchyardError
from store.artifacts import Artifacts
from store.formats import rows
from tests.support.rows_of_files import of_files


def line(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


def answer(custom_id: str, status: int, body: dict[str, Any]) -> bytes:
    return line(custom_id=custom_id, response={"status_code": status, "body": body}, error=None)


SOURCE = line(custom_id="a") + b"\n" + line(custom_id="b") + line(custom_id="c")
OUTPUT = answer("c", 200, {})
ERRORS = answer("a", 400, {"error": {"code": "bad", "message": "No."}})


def test_each_request_has_its_state_and_the_places_of_its_lines() -> None:
    table = of_files(io.BytesIO(SOURCE), io.BytesIO(OUTPUT), io.BytesIO(ERRORS))
    first = len(line(custom_id="a"))
    assert table.to_pylist() == [
        {"line": 1, "custom_id": "a", "ok": False, "code": "bad", "source": 0, "answer": 0},
        {"line": 3, "custom_id": "b", "ok": None, "code": None, "source": first + 1, "answer": None},
        {"line": 4, "custom_id": "c", "ok": True, "code": None, "source": 2 * first + 1, "answer": 0},
    ]


def test_a_batch_without_files_of_results_has_rows_without_a_state() -> None:
    table = of_files(io.BytesIO(SOURCE), None, None)
    assert table["ok"].to_pylist() == table["answer"].to_pylist() == [None] * 3
    assert of_files(io.BytesIO(b""), None, None).schema == rows.SCHEMA


@pytest.mark.parametrize(
    ("content", "expected"), [(b"", [0]), (b"a", [0]), (b"a\n", [0, 2]), (b"a\n\nbc\nd", [0, 2, 3, 6])]
)
def test_lines_start_after_line_feeds_also_over_blocks(
    content: bytes, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows.starts(io.BytesIO(content)).tolist() == expected
    monkeypatch.setattr(rows, "BLOCK_BYTES", 1)
    assert rows.starts(io.BytesIO(content)).tolist() == expected


def test_rows_are_read_as_they_were_written(artifacts: Artifacts) -> None:
    table = of_files(io.BytesIO(SOURCE), io.BytesIO(OUTPUT), io.BytesIO(ERRORS))
    with artifacts.create() as file:
        rows.write(file, table)
    assert rows.read(artifacts, file.sha256).equals(table)


def test_damaged_rows_are_named(artifacts: Artifacts) -> None:
    sha256 = artifacts.put(b"no parquet")
    with pytest.raises(BatchyardError, match=f"rows {sha256} in .* cannot be read"):
        rows.read(artifacts, sha256)
