"""A result chunk holds answers as they were written, and is read whole or by column."""

from __future__ import annotations

import pyarrow as pa
import pytest

from batchyard.errors import ArtifactMissing
from store.artifacts import Artifacts
from store.formats import chunks

COLUMNS = {"line": [3, 70_000], "ok": [True, False], "answer": ['{"custom_id":"ü"}', "{}"]}


def test_a_chunk_keeps_its_own_columns_and_no_other(artifacts: Artifacts) -> None:
    sha256 = chunks.write(artifacts, pa.table(COLUMNS | {"output_tokens": [1, 2]}))
    table = chunks.read(artifacts, sha256)
    assert table.schema.equals(chunks.SCHEMA)
    assert table.to_pydict() == COLUMNS


def test_single_columns_are_read(artifacts: Artifacts) -> None:
    sha256 = chunks.write(artifacts, pa.table(COLUMNS))
    assert chunks.read(artifacts, sha256, ["line"]).to_pydict() == {"line": COLUMNS["line"]}


def test_a_missing_chunk_is_an_error_of_the_store(artifacts: Artifacts) -> None:
    with pytest.raises(ArtifactMissing):
        chunks.read(artifacts, "0" * 64)
