"""A duplicate gets the answer of the request it is like, under its own custom_id, and says so."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchyard.endpoints import output_lines
from inference.answers import ANSWERS
from store.formats.plan import SCHEMA
from tasks.execution import deduplication
from tasks.execution.deduplication import Duplicates
from tests.support.planned import answers
from tests.support.rows import answer_of


def rows(*same_as: int | None) -> pa.Table:
    """Requests of lines 1 and on, each with the line of the request that it is like."""
    lines = range(1, len(same_as) + 1)
    columns = [list(lines), [f"r{line}" for line in lines], [""] * len(lines), list(same_as), [b""] * len(lines)]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def joined(duplicates: Duplicates, answers: pa.Table, *, shared: bool = False) -> pa.Table:
    return pa.concat_tables(duplicates.join(answers, shared=shared))


def parsed(table: pa.Table) -> dict[int, dict[str, Any]]:
    return {row["line"]: json.loads(row["answer"]) for row in table.to_pylist()}


def test_each_duplicate_follows_its_answer() -> None:
    table = joined(Duplicates(rows(None, 1, None, 1)), answers([1, 3]))
    lines = parsed(table)
    assert sorted(lines) == [1, 2, 3, 4]
    assert {lines[line]["custom_id"] for line in (1, 2, 4)} == {"r1", "r2", "r4"}
    for line in (2, 4):
        body = lines[line]["response"]["body"]
        assert body.pop("batchyard") == {"same_as": "r1"}
        assert body == lines[1]["response"]["body"]
    assert len({line["id"] for line in lines.values()}) == 4
    assert dict(zip(table["line"].to_pylist(), table["shared"].to_pylist(), strict=True)) == {
        1: False,
        2: True,
        3: False,
        4: True,
    }


def test_a_duplicate_of_an_embedding_has_its_numbers() -> None:
    body = b'{"data":[{"index":0,"embedding":2}]}'
    row = {"line": 1, "ok": True, "answer": output_lines.line("r1", 200, body, None)}
    vector = np.array([0.1, 0.5], "<f4").tobytes()
    answered = pa.Table.from_pylist([row | {"vectors": vector}], schema=ANSWERS)
    _, copied = (answer_of(row) for row in joined(Duplicates(rows(None, 1)), answered).to_pylist())
    assert copied["custom_id"] == "r2"
    assert copied["response"]["body"]["data"] == [{"index": 0, "embedding": [0.1, 0.5]}]


def test_a_duplicate_has_the_tokens_it_would_have_had() -> None:
    table = joined(Duplicates(rows(None, 1)), answers([1], tokens=(7, 2, 5)))
    assert [table[name].to_pylist() for name in ("input_tokens", "cached_tokens", "output_tokens")] == [
        [7, 7],
        [2, 2],
        [5, 5],
    ]


def test_only_the_request_that_ran_was_in_the_engine() -> None:
    table = joined(Duplicates(rows(None, 1, None)), answers([1, 3]))
    assert dict(zip(table["line"].to_pylist(), table["seconds"].to_pylist(), strict=True)) == {1: 0.5, 2: None, 3: 0.5}


def test_an_error_is_shared_too() -> None:
    lines = parsed(joined(Duplicates(rows(None, 1)), answers([1], failed={1: "too_long"})))
    assert lines[2]["response"]["status_code"] == 400
    assert lines[2]["response"]["body"]["error"]["code"] == "too_long"


def test_an_answer_that_comes_twice_is_shared_once() -> None:
    duplicates = Duplicates(rows(None, 1))
    assert joined(duplicates, answers([1])).num_rows == 2
    assert joined(duplicates, answers([1])).num_rows == 1


def test_answers_from_the_cache_are_shared_by_all() -> None:
    table = joined(Duplicates(rows(None, 1)), answers([1]), shared=True)
    assert table["shared"].to_pylist() == [True, True]


def test_many_long_copies_come_in_several_tables_each_with_its_original(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "COPIED_BYTES", 500)
    tables = list(Duplicates(rows(None, 1, 1, None, None, 5, 5)).join(answers([1, 4, 5])))
    assert [sorted(table["line"].to_pylist()) for table in tables if table.num_rows] == [[1, 2, 3], [4, 5, 6, 7]]
