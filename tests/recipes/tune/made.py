"""Bases, cells and results of tunes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recipes.tune.cells import Cell, Tune, TunedModel, cells
from recipes.tune.results import CellResult, Repeat
from recipes.tune.search import next_cell

ECHO = TunedModel(
    "echo", {"engine": "echo", "engine_args": {"ms_per_token": 10}}, batch_argument="slots", batch_default=128
)
MINI = TunedModel(
    "mini",
    {"engine": "vllm", "source": "/models/mini", "engine_args": {"max_model_len": 512}},
    batch_argument="max_num_seqs",
    size=4_000_000,
)
NANO = TunedModel("nano", {"engine": "vllm", "source": "/models/nano"}, batch_argument="max_num_seqs", size=1_000_000)
REMOTE = TunedModel("remote", {"engine": "openai"})
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."
Measure = Callable[[Cell], CellResult]


def options(**values: Any) -> Tune:
    return Tune.model_validate({"models": ["mini"]} | values)


def the_cells(*bases: TunedModel, **values: Any) -> list[Cell]:
    return cells(options(models=[base.name for base in bases], **values), bases)


def repeat(tokens: float = 100.0, **values: Any) -> Repeat:
    """Return a repeat of 1,000 rows in 10 seconds, unless values say something else."""
    known = {"rows": 1000, "ok": 1000, "output_tokens": int(10 * tokens), "seconds": 10.0}
    return Repeat.model_validate(known | {"p50": 1.0, "p95": 2.0, "p99": 3.0} | values)


def result(cell: Cell, *repeats: Repeat, **values: Any) -> CellResult:
    """Return the result of a cell that has completed with one repeat, unless they say something else."""
    return CellResult(cell=cell, **{"state": "completed", "repeats": repeats or (repeat(),)} | values)


def failed(cell: Cell, error: str, *evidence: str, **values: Any) -> CellResult:
    return CellResult(cell=cell, **{"state": "failed", "error": error, "evidence": evidence} | values)


def run(
    values: Tune, base: TunedModel, measure: Measure, results: list[CellResult] | None = None, **more: Any
) -> list[CellResult]:
    """Measure cells until there are no more."""
    results = [] if results is None else results
    while (cell := next_cell(values, [base], results, **more)) is not None:
        assert cell.name not in [other.cell.name for other in results]
        assert len(results) < 100, "it does not end"
        results.append(measure(cell))
    return results
