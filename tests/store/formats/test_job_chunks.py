"""A job chunk holds ends of items or judgements as they were written, and equal ones are one artifact."""

from __future__ import annotations

import pyarrow as pa
import pytest

from batchyard.errors import ArtifactMissing, BatchyardError
from store.artifacts import Artifacts
from store.formats import job_chunks

ENDS = pa.table(
    {
        "position": [5, 2**40],
        "number": [7, 0],
        "custom_id": ["ü", "item-0"],
        "state": ["completed", "failed"],
        "life": [1, 2],
        "turns": [3, 1],
        "result": ['{"text":"four"}', None],
        "error": [None, '{"code":"no_answer"}'],
        "started_at": [1.5, 2.5],
        "ended_at": [3.5, None],
    },
    schema=job_chunks.RESULT,
)
JUDGEMENTS = pa.table(
    {"position": [5], "life": [1], "turn": [2], "index": [0], "kind": ["score"], "value": ['{"score":1.0}']},
    schema=job_chunks.JUDGEMENT,
)


@pytest.mark.parametrize("table", [ENDS, JUDGEMENTS, ENDS.slice(0, 0)], ids=["results", "judgements", "no rows"])
def test_a_chunk_is_read_as_it_was_written(artifacts: Artifacts, table: pa.Table) -> None:
    assert job_chunks.read(artifacts, job_chunks.write(artifacts, table)).equals(table)


def test_equal_chunks_are_one_artifact(artifacts: Artifacts) -> None:
    assert job_chunks.write(artifacts, ENDS) == job_chunks.write(artifacts, ENDS.combine_chunks())


def test_single_columns_are_read(artifacts: Artifacts) -> None:
    table = job_chunks.read(artifacts, job_chunks.write(artifacts, ENDS), ["state", "position"])
    assert table.to_pydict() == {"state": ["completed", "failed"], "position": [5, 2**40]}


def test_a_damaged_chunk_is_an_error_that_names_it(artifacts: Artifacts) -> None:
    sha256 = artifacts.put(b"no Parquet at all")
    with pytest.raises(BatchyardError, match=f"job chunk {sha256} .* cannot be read"):
        job_chunks.read(artifacts, sha256)


def test_a_missing_chunk_is_an_error_of_the_store(artifacts: Artifacts) -> None:
    with pytest.raises(ArtifactMissing):
        job_chunks.read(artifacts, "0" * 64)
