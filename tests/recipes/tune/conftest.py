"""Fixtures of this folder: what a tune has measured."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.tune import report
from recipes.tune.results import CellResult
from tests.recipes.tune.made import MINI, failed, options, repeat, result, the_cells

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."


@pytest.fixture
def document() -> dict[str, Any]:
    """A tune of two by two cells and a repair, one of which has failed, one was not measured."""
    values = {"batch": [8, 16], "concurrency": [1, 2]}
    first, second, third, fourth = the_cells(MINI, **values)
    repaired = fourth.model_copy(update={"name": "mini-16x2-repair", "repair_of": "mini-16x2", "batch": 8})
    results: list[CellResult] = [
        result(
            first,
            repeat(100, p95=1.0, jobs=("batch_1",)),
            start_seconds=2.5,
            peak_memory=3 * 2**30,
            config_sha256="a" * 64,
        ),
        result(second, repeat(150, p95=3.0, errors={"request_timeout": 10}, ok=990)),
        result(third, repeat(200, p95=2.0)),
        failed(fourth, OUT_OF_MEMORY),
        CellResult(cell=repaired, state="not_run"),
    ]
    return report.document(options(slo="p95<=5s", repair=True, **values), [MINI], results)
