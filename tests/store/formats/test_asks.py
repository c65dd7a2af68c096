"""A job's plan file is a plan to whoever runs its segments, and knows the place of each request in its item."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from batchyard.errors import BatchyardError
from store.artifacts import Artifacts
from store.formats import asks, plan


def segment_table(first: int, count: int) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {
            "line": line,
            "custom_id": f"item-{line}/draft.1.0",
            "body": '{"model":"echo"}',
            "same_as": None,
            "fingerprint": None,
            "position": line,
            "life": 1,
            "visit": 1,
            "sample": 0,
            "retry": 0,
            "ask": bytes([line % 256]) * 16,
            "turn": 1,
        }
        for line in range(first, first + count)
    ]
    return pa.Table.from_pylist(rows, schema=asks.SCHEMA)


def write(artifacts: Artifacts, *tables: pa.Table) -> str:
    with artifacts.create() as file:
        asks.write(file, tables)
    return file.sha256


def test_each_table_is_one_row_group_however_many_requests_it_has(artifacts: Artifacts) -> None:
    large = pa.concat_tables([segment_table(1, 1100)] * 1000)  # more than Parquet's writers put into one by default
    tables = [segment_table(1, 3), large, segment_table(4, 1)]
    sha256 = write(artifacts, *tables)
    for row_group, table in enumerate(tables):
        assert plan.segment(artifacts, sha256, row_group, asks.SCHEMA.names).equals(table)


def test_a_segment_of_a_job_is_read_as_any_other(artifacts: Artifacts) -> None:
    sha256 = write(artifacts, segment_table(1, 2), segment_table(3, 2))
    assert plan.segment(artifacts, sha256, 1).select(plan.SCHEMA.names).to_pylist() == [
        {"line": line, "custom_id": f"item-{line}/draft.1.0", "body": '{"model":"echo"}'}
        | dict.fromkeys(("same_as", "fingerprint"))
        for line in (3, 4)
    ]


def test_single_columns_are_read(artifacts: Artifacts) -> None:
    sha256 = write(artifacts, segment_table(7, 2))
    table = plan.segment(artifacts, sha256, 0, ["line", "ask"])
    assert table.to_pydict() == {"line": [7, 8], "ask": [b"\7" * 16, b"\10" * 16]}


def test_a_table_of_another_shape_is_no_segment(artifacts: Artifacts) -> None:
    with pytest.raises(ValueError, match="schema"):
        write(artifacts, segment_table(1, 1).drop_columns(["ask"]))


def test_a_damaged_plan_is_an_error_that_names_it(artifacts: Artifacts) -> None:
    sha256 = artifacts.put(b"no Parquet at all")
    with pytest.raises(BatchyardError, match=f"plan {sha256} .* cannot be read"):
        plan.segment(artifacts, sha256, 0)
