"""A cell's figures are the medians of its repeats."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.tune.cells import TunedModel
from recipes.tune.results import CellResult, at_once, batch_of, is_steady
from tests.recipes.tune.made import ECHO, MINI, REMOTE, failed, repeat, result, the_cells

[CELL] = the_cells(MINI, batch=[100])


def test_figures_are_medians_over_the_repeats() -> None:
    slow = repeat(50, seconds=20.0, p95=9.0, ok=900, errors={"request_timeout": 100})
    medians = result(CELL, repeat(100), slow, repeat(110, p95=2.5)).medians
    assert medians is not None
    assert (medians.rows, medians.tokens, medians.p95, medians.errors) == (100, 100, 2.5, 0)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.01, 1e4)), min_size=1, max_size=7))
def test_throughput_is_the_median_of_tokens_over_seconds(pairs: list[tuple[int, float]]) -> None:
    repeats = [repeat(output_tokens=tokens, seconds=seconds) for tokens, seconds in pairs]
    medians = result(CELL, *repeats).medians
    assert medians is not None and medians.tokens is not None
    assert math.isclose(medians.tokens, median(tokens / seconds for tokens, seconds in pairs))


def test_requests_that_failed_are_no_throughput() -> None:
    medians = result(CELL, repeat(ok=500, errors={"engine_died": 500})).medians
    assert medians is not None and (medians.rows, medians.errors) == (50, 0.5)


def test_embeddings_have_their_inputs_tokens_as_throughput() -> None:
    medians = result(CELL, repeat(output_tokens=0, input_tokens=2000)).medians
    assert medians is not None and medians.tokens == 200


@pytest.mark.parametrize(("rows", "steady"), [(499, False), (500, True)])
def test_a_cell_is_steady_with_five_rows_for_each_request_at_once(rows: int, steady: bool) -> None:
    assert is_steady(result(CELL, repeat(), repeat(rows=rows, ok=rows)), MINI) is steady


@pytest.mark.parametrize(
    ("base", "values", "requests"),
    [
        (MINI, {"batch": [100]}, 100),
        (MINI, {"batch": [100], "set": {"replicas": [2]}}, 200),
        (MINI, {"batch": [100], "set": {"replicas": [2], "max_in_flight": [30]}}, 60),
        (ECHO, {}, 128),
        (MINI, {}, 256),
        (REMOTE, {"batch": [7]}, 7),
    ],
)
def test_the_requests_at_once_are_those_of_all_replicas(
    base: TunedModel, values: dict[str, Any], requests: int
) -> None:
    """An engine that says 256 is one whose entry leaves that to it."""
    [cell] = the_cells(base, **values)
    assert at_once(result(cell, capacity=256), base) == requests


def test_nobody_knows_what_was_not_measured() -> None:
    nothing = failed(CELL, "it ended")
    assert (nothing.medians, is_steady(nothing, MINI), nothing.differing) == (None, None, [])


def test_a_manifest_that_says_something_else_is_noticed() -> None:
    assert result(CELL, overrides={"engine_args.max_num_seqs": 100}).differing == []
    assert result(CELL, overrides={"engine_args.max_num_seqs": 64}).differing == ["engine_args.max_num_seqs"]
    [default] = the_cells(MINI, set={"replicas": [None]})
    assert result(default, overrides={"replicas": 1}).differing == []


def test_batch_is_the_cells_or_the_entrys_or_the_engines() -> None:
    [plain], [default] = the_cells(MINI), the_cells(ECHO)
    assert batch_of(result(CELL, capacity=7), MINI) == 100
    assert batch_of(result(plain, capacity=256), MINI) == 256
    assert batch_of(result(plain), MINI) is None
    assert batch_of(result(default, capacity=7), ECHO) == 128


def test_results_survive_json() -> None:
    there = result(CELL, repeat(), repeat(), start_seconds=3.5, evidence=("one", "two"), overrides={"a": [1, None]})
    assert CellResult.model_validate_json(there.model_dump_json()) == there
