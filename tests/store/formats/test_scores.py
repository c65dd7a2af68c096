"""The scores of a batch are read as columns, however long the answers beside them are."""

from __future__ import annotations

import json

from batchyard import json_lines
from store.artifacts import Artifacts
from store.formats import scores


def test_scores_are_read_in_the_order_of_their_lines(artifacts: Artifacts) -> None:
    entries = [
        {
            "line": line,
            "custom_id": f"r{line}",
            "task": "sums",
            "correct": line % 2 == 0,
            "expected": "ö\u2028",
            "answer": None,
        }
        for line in range(1, scores.PIECE + 3)
    ]
    sha256 = artifacts.put(b"".join(map(json_lines.line, entries)))
    table = scores.read(artifacts, sha256)
    assert table.to_pylist() == [{name: entry[name] for name in scores.SCHEMA.names} for entry in entries]
    assert json.loads(artifacts.read(sha256).splitlines()[0]) == entries[0]


def test_a_batch_without_expected_answers_has_no_scores(artifacts: Artifacts) -> None:
    assert scores.read(artifacts, artifacts.put(b"")).num_rows == 0
