"""Step parquet: a typed table of the results."""

from __future__ import annotations

import pyarrow.parquet as pq

from store.artifacts import Artifacts
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
