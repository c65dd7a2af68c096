"""Files of vectors: beside their rows, or alone; whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard.cli.rows import vector_files
from batchyard.client.embed import Vectors
from batchyard.errors import ConfigurationError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps({"id": f"0{n}", **({"n": n} if n else {})}) + "\n" for n in range(3)))
    return file


def vectors(rows: int = 3) -> Vectors:
    """Vectors of rows, of which the second has none."""
    made = Vectors("float32", normalize=False)
    for row in range(rows):
        made.add()
        made.keep(row, {"data": [{"embedding": [row, 0.5]}]})
        made.tokens[row] = row
    made.errors[1] = "it failed"
    return made


def test_parquet_has_all_columns_and_the_vectors(source: Path, tmp_path: Path) -> None:
    vector_files.write(tmp_path / "out.parquet", source, vectors(), "new_")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.field("new_embedding").type == pa.list_(pa.float32(), 2)
    assert table.to_pydict() == {
        "id": ["00", "01", "02"],
        "n": [None, "1", "2"],
        "new_embedding": [[0, 0.5], None, [2, 0.5]],
        "new_error": [None, "it failed", None],
        "new_tokens": [0, 1, 2],
    }


def test_columns_of_parquet_keep_their_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1.5, None, 3]}), tmp_path / "in.parquet")
    vector_files.write(tmp_path / "out.parquet", tmp_path / "in.parquet", vectors(), "")
    assert pq.read_table(tmp_path / "out.parquet").column("n").to_pylist() == [1.5, None, 3]


def test_npy_has_the_vectors_alone_and_nan_for_a_row_without(source: Path, tmp_path: Path) -> None:
    vector_files.write(tmp_path / "out.npy", source, vectors(), "")
    matrix = np.load(tmp_path / "out.npy")
    assert matrix.dtype == np.float32 and matrix[[0, 2]].tolist() == [[0, 0.5], [2, 0.5]]
    assert np.isnan(matrix[1]).all() and matrix.shape == (3, 2)


@pytest.mark.parametrize("rows", [2, 4])
def test_rows_that_have_changed_meanwhile_are_refused_and_leave_no_file(
    source: Path, tmp_path: Path, rows: int
) -> None:
    with pytest.raises(ConfigurationError, match="has changed meanwhile"):
        vector_files.write(tmp_path / "out.parquet", source, vectors(rows), "")
    assert sorted(tmp_path.iterdir()) == [source]


def test_another_suffix_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"name it \.parquet or \.npy"):
        vector_files.check_output(Path("out.csv"))
