"""A result chunk holds answers as they were written, and is read whole or by column."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard.errors import ArtifactMissing, BatchyardError
from store.artifacts import Artifacts
from store.formats import chunks

COLUMNS = {"line": [3, 70_000], "ok": [True, False], "answer": ['{"custom_id":"ü"}', "{}"], "seconds": [0.25, None]}


def test_a_chunk_keeps_its_own_columns_and_no_other(artifacts: Artifacts) -> None:
    sha256 = chunks.write(artifacts, pa.table(COLUMNS | {"output_tokens": [1, 2]}))
    (table,) = chunks.read(artifacts, sha256)
    assert table.schema.equals(chunks.SCHEMA)
    assert table.to_pydict() == COLUMNS


def test_embeddings_are_stored_as_numbers_and_read_as_the_text_of_their_answers(artifacts: Artifacts) -> None:
    vector = np.array([0.1, 0.5], "<f4").tobytes()
    line = '{"id":"i","custom_id":"ü","response":{"body":{"data":[{"embedding":%s}]}}}'
    stored = COLUMNS | {"answer": [line % 2, "{}"], "vectors": [vector, None]}
    sha256 = chunks.write(artifacts, pa.table(stored))
    (table,) = chunks.read(artifacts, sha256)
    assert table.schema.equals(chunks.SCHEMA)
    assert table.to_pydict() == COLUMNS | {"answer": [line % "[0.1,0.5]", "{}"]}
    (table,) = chunks.read(artifacts, sha256, ["line", "seconds"])
    assert table.to_pydict() == {"line": COLUMNS["line"], "seconds": COLUMNS["seconds"]}


def test_a_chunk_without_embeddings_has_no_column_for_them(artifacts: Artifacts) -> None:
    sha256 = chunks.write(artifacts, pa.table(COLUMNS | {"vectors": pa.nulls(2, pa.binary())}))
    with artifacts.open(sha256) as file:
        assert pq.read_schema(file).names == chunks.SCHEMA.names


def test_single_columns_are_read(artifacts: Artifacts) -> None:
    sha256 = chunks.write(artifacts, pa.table(COLUMNS))
    (table,) = chunks.read(artifacts, sha256, ["line"])
    assert table.to_pydict() == {"line": COLUMNS["line"]}


def test_a_chunk_of_long_answers_is_read_a_few_at_a_time(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "TABLE_BYTES", 100_000)
    answers = [str(line).ljust(20_000, ".") for line in range(50)]
    long = {"line": list(range(50)), "ok": [True] * 50, "answer": answers, "seconds": [0.5] * 50}
    tables = list(chunks.read(artifacts, chunks.write(artifacts, pa.table(long))))
    assert max(table.num_rows for table in tables) <= 5
    assert pa.concat_tables(tables).to_pydict() == long


def test_a_damaged_chunk_is_an_error_that_names_it(artifacts: Artifacts) -> None:
    sha256 = artifacts.put(b"no Parquet at all")
    with pytest.raises(BatchyardError, match=f"result chunk {sha256} .* cannot be read"):
        list(chunks.read(artifacts, sha256))


@pytest.mark.parametrize("rows", [1000, 40_000])
def test_a_chunk_with_one_changed_bit_is_an_error_that_names_it(artifacts: Artifacts, rows: int) -> None:
    chance = random.Random(1)
    answers = [chance.randbytes(16).hex() for _ in range(rows)]
    table = pa.table({"line": range(rows), "ok": [True] * rows, "answer": answers, "seconds": [0.5] * rows})
    sha256 = chunks.write(artifacts, table)
    path = Path(artifacts.path(sha256))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BatchyardError, match=f"result chunk {sha256} .* cannot be read"):
        list(chunks.read(artifacts, sha256))


def test_a_missing_chunk_is_an_error_of_the_store(artifacts: Artifacts) -> None:
    with pytest.raises(ArtifactMissing):
        list(chunks.read(artifacts, "0" * 64))
