"""The seconds of any line are read alone."""

from __future__ import annotations

import io

import numpy as np

from store.artifacts import Artifacts
from store.formats import seconds


def written(artifacts: Artifacts, lines: list[int], values: list[float]) -> bytes:
    with artifacts.create() as file:
        seconds.write(file, np.array(lines, np.int64), np.array(values))
    return artifacts.read(file.sha256)


def test_each_line_has_its_own_seconds_or_none(artifacts: Artifacts) -> None:
    file = io.BytesIO(written(artifacts, [5, 2, 3], [0.5, 0.25, np.nan]))
    assert [seconds.read(file, line) for line in range(1, 8)] == [None, 0.25, None, None, 0.5, None, None]


def test_lines_that_nobody_measured_take_no_byte(artifacts: Artifacts) -> None:
    assert written(artifacts, [1, 900], [np.nan, np.nan]) == b""
    assert written(artifacts, [], []) == b""
    assert len(written(artifacts, [2, 900], [1.0, np.nan])) == 16


def test_a_batch_without_the_artifact_has_no_seconds() -> None:
    assert seconds.read(None, 1) is None
