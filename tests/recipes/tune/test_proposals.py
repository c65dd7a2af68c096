"""Optuna proposes cells of the matrix by what those before have shown, each once."""

from __future__ import annotations

from typing import Any

from recipes.tune.cells import Cell, cells
from recipes.tune.results import CellResult
from recipes.tune.search import proposed, throughput
from tests.recipes.tune.made import MINI, OUT_OF_MEMORY, failed, options, repeat, result, run, the_cells


def known(cell: Cell) -> CellResult:
    """Return the result of a cell whose tokens/s are highest at 64 requests at once and two replicas."""
    place = abs((cell.batch or 8).bit_length() - 7) + abs(cell.overrides.get("replicas", 1) - 2)
    return result(cell, repeat(seconds=10 + place))


OPTUNA: dict[str, Any] = {"batch": [4, 8, 16, 32, 64, 128, 256, 512], "set": {"replicas": [1, 2, 3, 4]}}


def test_optuna_finds_the_best_of_32_cells_by_measuring_16() -> None:
    results = run(options(**OPTUNA, search="optuna", cells=16), MINI, known)
    assert len(results) == 16
    assert (64, 2) in [(each.cell.batch, each.cell.overrides["replicas"]) for each in results]


def test_a_search_by_optuna_that_goes_on_chooses_the_same_cells() -> None:
    values = options(**OPTUNA, search="optuna", cells=8, default=True, repair=True)

    def measure(cell: Cell) -> CellResult:
        return failed(cell, OUT_OF_MEMORY) if (cell.batch or 0) > 200 else known(cell)

    whole = run(values, MINI, measure)
    assert whole[0].cell.overrides == {}
    for length in range(len(whole)):
        assert run(values, MINI, measure, whole[:length]) == whole


def test_optuna_measures_all_cells_of_a_small_matrix_once() -> None:
    results = run(options(batch=[8, 16, 32], search="optuna"), MINI, known)
    assert sorted(each.cell.batch or 0 for each in results) == [8, 16, 32]


def test_no_cell_is_proposed_once_there_are_as_many_as_the_options_say() -> None:
    values = options(batch=[8, 16, 32], search="optuna", cells=2)
    matrix = cells(values, [MINI])
    assert proposed(values, matrix, [known(cell) for cell in matrix[:2]]) is None
    assert proposed(values, matrix, [known(cell) for cell in matrix[:1]]) in matrix[1:]


def test_the_last_cell_is_proposed_however_often_the_sampler_draws_another() -> None:
    values = options(**OPTUNA, search="optuna", cells=32)
    matrix = cells(values, [MINI])
    assert proposed(values, matrix, [known(cell) for cell in matrix[:-1]]) == matrix[-1]


def test_a_cell_that_failed_or_breaks_the_slo_is_worth_nothing() -> None:
    (cell,) = the_cells(MINI)
    slow = result(cell, repeat(100, p95=9.0))
    assert throughput(slow, options()) == 100
    assert throughput(slow, options(slo="p95<=5s")) == 0
    assert throughput(failed(cell, OUT_OF_MEMORY), options()) == 0
