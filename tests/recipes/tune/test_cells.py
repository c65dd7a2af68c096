"""Cells are what the options ask for: unique configurations, each derived from a model's entry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from batchyard.models import ModelSpec
from inference.engines.registry import ENGINES
from recipes.tune.cells import SEED, Cell, Tune, TunedModel, cells, largest
from tests.recipes.tune.made import ECHO, MINI, NANO, REMOTE, options, the_cells


def test_a_matrix_is_the_product_of_its_dimensions() -> None:
    chosen = the_cells(NANO, MINI, batch=[8, 16], set={"engine_args.block_size": [16, 32]})
    assert [(cell.model, cell.overrides) for cell in chosen] == [
        (model, {"engine_args.block_size": block, "engine_args.max_num_seqs": batch})
        for model in ("nano", "mini")
        for block in (16, 32)
        for batch in (8, 16)
    ]
    assert len({json.dumps(cell.entry(MINI), sort_keys=True) for cell in chosen if cell.model == "mini"}) == 4


def test_models_as_they_are_can_be_measured_too_and_only_once() -> None:
    chosen = the_cells(NANO, MINI, batch=[8], concurrency=[2, 4], default=True)
    assert [cell.name for cell in chosen] == [
        "nano-x2", "mini-x2", "nano-8x2", "nano-8x4", "mini-8x2", "mini-8x4",
    ]  # fmt: skip
    assert [cell.name for cell in the_cells(MINI, default=True)] == ["mini"]
    assert len(the_cells(MINI, matrix="seed", default=True)) == 1 + len(SEED)


def test_a_model_without_dimensions_is_one_cell_as_it_is() -> None:
    [cell] = the_cells(MINI)
    assert (cell.name, cell.overrides, cell.concurrency) == ("mini", {}, 1)
    assert cell.entry(MINI) == MINI.entry


@pytest.mark.parametrize(
    ("base", "key"),
    [(MINI, "engine_args.max_num_seqs"), (ECHO, "engine_args.slots"), (REMOTE, "max_in_flight")],
)
def test_batch_is_the_key_that_bounds_the_requests_of_the_engine(base: TunedModel, key: str) -> None:
    [cell] = the_cells(base, batch=[24])
    assert cell.overrides == {key: 24}


@pytest.mark.parametrize("engine", ENGINES.load(), ids=lambda engine: engine.name)
def test_the_argument_that_an_engine_names_for_batch_is_one_that_it_takes(engine: Any) -> None:
    """vLLM's own names are checked by its engine at start."""
    if engine.arguments is not None and engine.batch_argument is not None:
        schema = engine.arguments
        assert engine.batch_argument in schema.model_fields or schema.model_config.get("extra") == "allow"


def test_overrides_leave_the_rest_of_an_entry_as_it_is() -> None:
    [cell] = the_cells(MINI, set={"engine_args.compilation_config": [{"level": 0}], "replicas": [2]})
    assert cell.entry(MINI) == {
        **MINI.entry,
        "replicas": 2,
        "engine_args": {"max_model_len": 512, "compilation_config": {"level": 0}},
    }
    assert MINI.entry["engine_args"] == {"max_model_len": 512}
    ModelSpec(name="mini~0", **cell.entry(MINI))


def test_a_value_of_none_takes_a_key_out() -> None:
    assert "engine_args" not in Cell(name="a", model="mini", overrides={"engine_args.max_model_len": None}).entry(MINI)


def test_the_matrix_of_the_seed_has_its_presets() -> None:
    chosen = the_cells(NANO, MINI, matrix="seed")
    assert [(cell.preset, cell.batch, cell.concurrency) for cell in chosen] == [tuple(preset) for preset in SEED]
    assert {cell.model for cell in chosen if cell.preset == "large"} == {"mini"}
    assert {cell.model for cell in chosen if cell.preset != "large"} == {"nano"}


def test_the_largest_model_has_the_most_bytes_or_is_named_last() -> None:
    assert largest([MINI, NANO]) is MINI
    assert largest([NANO, REMOTE]) is REMOTE


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": [8, 8]}, r"set: cells 'mini-8x1' and 'mini-8x1-2' are one configuration"),
        ({"set": {"replicas": [1, 2, 1]}}, r"'mini\+replicas-1' and 'mini\+replicas-1-2'"),
        ({"batch": [8], "set": {"engine_args.max_num_seqs": [9]}}, r"set\.engine_args\.max_num_seqs: that is `batch`"),
        ({"matrix": "seed", "batch": [8]}, r"batch: matrix 'seed' has its own"),
        ({"search": "up"}, r"slo: search 'up' goes on until cells break it"),
        ({"search": "optuna", "matrix": "seed"}, r"matrix: search 'optuna' chooses of `batch`, .* leave out 'seed'"),
        (
            {"batch": list(range(1, 41)), "set": {"replicas": list(range(1, 31))}},
            r"1,200 cells, and 1,000 are the most",
        ),
    ],
)
def test_dimensions_that_cannot_be_are_refused_with_their_place(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        the_cells(MINI, **values)


def test_a_model_that_the_matrix_would_not_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r"models\.1: matrix 'seed' runs on 'mini' and 'nano'; leave out 'middle'"):
        the_cells(NANO, TunedModel("middle", {"engine": "vllm"}, size=2_000_000), MINI, matrix="seed")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"set": {"replica": [1]}}, "a model's entry has no such key; did you mean replicas"),
        ({"set": {"engine": ["echo"]}}, "another engine is another model; add it to models.toml"),
        ({"set": {"engine_args.command": ["sh"]}}, "how a server is started is set in models.toml only"),
        ({"set": {"replicas.x": [1]}}, "only engine_args has keys of its own"),
        ({"set": {"engine_args": [{}]}}, "only engine_args has keys of its own"),
        ({"set": {"replicas": []}}, "at least 1 item"),
        ({"slo": "p59<=5s"}, "did you mean p99"),
        ({"budget": "2 hours"}, "is no duration"),
        ({"batch": [0]}, "greater than 0"),
        ({"batches": [1]}, "Extra inputs"),
    ],
)
def test_options_that_cannot_be_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        options(**values)


VALUES = st.lists(st.integers(1, 4) | st.sampled_from(["a", "a b", "ä/ö"]), min_size=1, max_size=3)


@given(
    batch=st.lists(st.integers(1, 4), max_size=3),
    concurrency=st.lists(st.integers(1, 4), max_size=3),
    dimensions=st.dictionaries(st.sampled_from(["engine_args.a", "engine_args.b", "replicas"]), VALUES, max_size=3),
)
def test_cells_are_unique_and_their_names_are_safe(
    batch: list[int], concurrency: list[int], dimensions: dict[str, list[Any]]
) -> None:
    values = Tune(models=["mini"], batch=batch, concurrency=concurrency, set=dimensions)
    lists = [batch, concurrency, *dimensions.values()]
    if any(len({json.dumps(value) for value in each}) < len(each) for each in lists):
        with pytest.raises(ValueError, match="are one configuration"):
            cells(values, [MINI])
        return
    chosen = cells(values, [MINI])
    assert len({cell.name for cell in chosen}) == len({cell.identity(MINI) for cell in chosen}) == len(chosen)
    assert all(set(cell.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.+-") for cell in chosen)
    assert [Cell.model_validate_json(cell.model_dump_json()) for cell in chosen] == chosen
