"""The next cell is one that nobody has measured, and there is an end to them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recipes.tune.cells import Cell, cells
from recipes.tune.results import CellResult
from tests.recipes.tune.made import ECHO, MINI, OUT_OF_MEMORY, failed, options, repeat, result, run


def batches(results: list[CellResult]) -> list[int | None]:
    return [result.cell.batch for result in results]


def test_the_matrix_is_measured_in_its_order() -> None:
    values = options(batch=[8, 16], set={"replicas": [1, 2]})
    assert [each.cell for each in run(values, MINI, result)] == cells(values, [MINI])


def test_a_tune_that_goes_on_measures_what_is_missing() -> None:
    values = options(batch=[8, 16, 32], repair=True)

    def measure(cell: Cell) -> CellResult:
        return failed(cell, OUT_OF_MEMORY) if cell.batch and cell.batch > 20 else result(cell)

    whole = run(values, MINI, measure)
    for length in range(len(whole)):
        assert run(values, MINI, measure, whole[:length]) == whole


def test_a_failed_cell_is_followed_by_its_repair_once() -> None:
    values = options(batch=[256, 8], repair=True)
    results = run(values, MINI, lambda cell: failed(cell, OUT_OF_MEMORY))
    assert batches(results) == [256, 128, 8, 4]
    assert [each.cell.repair_of for each in results] == [None, "mini-256x1", None, "mini-8x1"]
    assert batches(run(options(batch=[256, 8]), MINI, lambda cell: failed(cell, OUT_OF_MEMORY))) == [256, 8]


def test_a_repair_that_is_another_cell_is_not_measured_twice() -> None:
    results = run(options(batch=[256, 128], repair=True), MINI, lambda cell: failed(cell, OUT_OF_MEMORY))
    assert batches(results) == [256, 128, 64]


def test_a_search_goes_up_until_two_cells_in_a_row_break_the_slo() -> None:
    values = options(batch=[4], search="up", slo="p95<=1s")
    results = run(values, MINI, lambda cell: result(cell, repeat(p95=(cell.batch or 0) / 20)))
    assert batches(results) == [4, 8, 16, 32, 64]


def test_a_search_goes_on_while_the_throughput_grows_towards_its_bound() -> None:
    values = options(batch=[1], search="up", slo="tokens>=100/s,p95<=10s")
    results = run(values, MINI, lambda cell: result(cell, repeat(min(10 * (cell.batch or 0), 90))))
    assert batches(results) == [1, 2, 4, 8, 16, 32, 64]


def test_a_search_ends_where_all_rows_run_at_once() -> None:
    values = options(batch=[100], search="up", slo="p95<=10s")
    assert batches(run(values, MINI, result)) == [100, 200, 400, 800, 1600]


def test_a_search_raises_concurrency_where_that_is_what_is_set() -> None:
    values = options(concurrency=[1], search="up", slo="p95<=1s")

    def measure(cell: Cell) -> CellResult:
        return result(cell, repeat(p95=cell.concurrency / 4))

    assert [each.cell.concurrency for each in run(values, MINI, measure)] == [1, 2, 4, 8, 16]
    assert [each.cell.concurrency for each in run(values, MINI, measure, max_concurrency=3)] == [1, 2]


def test_a_search_without_a_batch_begins_at_the_engines_own() -> None:
    values = options(models=["echo"], search="up", slo="p95<=1s")
    results = run(values, ECHO, lambda cell: result(cell, repeat(p95=9)))
    assert batches(results) == [None, 256]


def test_a_model_as_it_is_is_no_part_of_a_search_over_batches() -> None:
    values = options(models=["echo"], batch=[4], default=True, search="up", slo="p95<=1s")
    results = run(values, ECHO, lambda cell: result(cell, repeat(p95=(cell.batch or 0) / 5)))
    assert batches(results) == [None, 4, 8, 16]


def test_each_series_is_searched_for_itself() -> None:
    values = options(batch=[8], set={"replicas": [1, 2]}, search="up", slo="p95<=1s")

    def measure(cell: Cell) -> CellResult:
        return result(cell, repeat(p95=(cell.batch or 0) / cell.overrides["replicas"] / 10))

    results = run(values, MINI, measure)
    assert sorted((each.cell.overrides["replicas"], each.cell.batch or 0) for each in results) == [
        (1, 8), (1, 16), (1, 32), (2, 8), (2, 16), (2, 32), (2, 64),
    ]  # fmt: skip


@given(st.lists(st.sampled_from(["completed", "failed", "over_budget", "not_run", "slow"]), max_size=30), st.booleans())
def test_every_tune_ends_and_measures_no_configuration_twice(fates: list[str], repair: bool) -> None:
    values = options(batch=[4, 8], set={"replicas": [1, 2]}, search="up", slo="p95<=2s", repair=repair)
    left = iter(fates)

    def measure(cell: Cell) -> CellResult:
        fate = next(left, "failed")
        if fate in ("completed", "slow"):
            return result(cell, repeat(p95=1 if fate == "completed" else 3))
        return failed(cell, OUT_OF_MEMORY, state=fate)

    results = run(values, MINI, measure)
    identities = [each.cell.identity(MINI) for each in results]
    assert len(set(identities)) == len(identities)
