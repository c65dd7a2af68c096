"""Step parquet: a typed table of the results."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.artifacts import Artifacts
from store.formats.results import ResultRow
from tasks.steps import registry
from tasks.steps.score import STEP as SCORE  # noqa: F401  an entry point of a test
from tests.support.step_results import BatchResults, a_row


def test_parquet_is_a_typed_table_in_input_order(artifacts: Artifacts) -> None:
    results = BatchResults(artifacts, [a_row(1, "95", "95"), a_row(2, None, "7")])
    registry.run({"step": "parquet"}, results)
    with artifacts.open(results.added["results.parquet"]) as file:
        first, second = pq.read_table(file).to_pylist()
    assert (first["text"], first["finish_reason"], first["input_tokens"], first["output_tokens"]) == (
        "95",
        "stop",
        5,
        2,
    )
    assert (second["text"], second["status_code"], second["error_code"]) == (None, None, "request_timeout")
    assert (first["seconds"], second["seconds"]) == (0.5, None)


def written(artifacts: Artifacts, *rows: ResultRow) -> list[dict[str, Any]]:
    results = BatchResults(artifacts, list(rows))
    registry.run({"step": "parquet"}, results)
    with artifacts.open(results.added["results.parquet"]) as file:
        table: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return table


def test_a_line_of_embeddings_has_the_vectors_of_all_its_inputs_packed_ones_too(artifacts: Artifacts) -> None:
    packed = base64.b64encode(struct.pack("<2f", 0.5, -2.0)).decode()
    three = {"data": [{"embedding": [float(number), 1.0]} for number in range(3)]}
    one, several, decoded = written(
        artifacts,
        ResultRow(1, "one", {"input": "a"}, 200, {"data": [{"embedding": [0.25, 1.0]}]}, None),
        ResultRow(2, "three", {"input": ["a", "b", "c"]}, 200, three, None),
        ResultRow(3, "packed", {"encoding_format": "base64"}, 200, {"data": [{"embedding": packed}]}, None),
    )
    assert one["embeddings"] == [[0.25, 1.0]]
    assert several["embeddings"] == [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    assert decoded["embeddings"] == [[0.5, -2.0]]
    assert {one["text"], one["error_code"]} == {None}


def test_an_answer_without_a_text_says_why(artifacts: Artifacts) -> None:
    message = {"content": None, "reasoning_content": "let me see"}
    usage = {
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens": 64,
        "completion_tokens_details": {"reasoning_tokens": 60},
    }
    response = {"choices": [{"message": message, "finish_reason": "length"}], "usage": usage}
    (row,) = written(artifacts, ResultRow(1, "t0", {}, 200, response, None))
    assert (row["text"], row["reasoning"], row["error_code"]) == (None, "let me see", "reasoning_only")
    assert (row["cached_tokens"], row["output_tokens"], row["reasoning_tokens"]) == (5, 64, 60)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
)
BODIES = JSON | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("choices", "data", "usage", "error", "results"), JSON)
)


@pytest.fixture(scope="module")
def module_artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    folder: Path = tmp_path_factory.mktemp("artifacts")
    return Artifacts(str(folder))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.tuples(st.sampled_from([200, 400, None]), BODIES, BODIES), max_size=3))
def test_whatever_a_response_holds_there_is_one_row_for_each_request(
    module_artifacts: Artifacts, answers: list[tuple[int | None, Any, Any]]
) -> None:
    rows = [
        ResultRow(line, f"r{line}", {"model": "m", "metadata": metadata}, status, body, None)
        for line, (status, body, metadata) in enumerate(answers, 1)
    ]
    table = written(module_artifacts, *rows)
    assert [row["custom_id"] for row in table] == [row.custom_id for row in rows]
