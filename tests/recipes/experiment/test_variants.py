"""A variant pools its repeats item by item, and has metrics as a whole beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recipes.experiment.values import ComparedChild
from recipes.experiment.variants import Variant
from tests.recipes.experiment.made import child, measured, scored


def variant(*children: ComparedChild) -> Variant:
    return Variant("big", children, [measured(each) for each in children])


def test_an_item_has_the_mean_of_the_repeats_that_have_it(tmp_path: Path) -> None:
    both = variant(scored(tmp_path, "big", [1, 2]), scored(tmp_path, "big", [3, 4, 5], repeat=1))
    assert both.column("score").tolist() == [2, 3, 5]
    assert np.isnan(both.column("none")).all()


def test_repeats_over_different_inputs_have_no_values_by_item(tmp_path: Path) -> None:
    other = scored(tmp_path, "big", [1], repeat=1, manifest={"input_sha256": "b" * 64})
    first = scored(tmp_path, "big", [1])
    assert variant(first).by_item == ["completed", "score"]
    assert variant(first, other).by_item == []


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"rate": 0.5, "name": "x", "none": None, "bad": float("inf")}, {"rate": 0.5}),
        ({"pass_rate": {"mean": 0.5, "n": 4, "intervals": {"mean": [0, 1]}}}, {"pass_rate": 0.5}),
        ({"tiers": {"1": {"attempts": 3}}}, {"tiers/1/attempts": 3}),
        ({"intervals": {"rate": [0, 1]}, "data_sources": {"a": {"rate": 1}}}, {}),
    ],
)
def test_metrics_as_a_whole_are_the_numbers_of_metrics_json(
    tmp_path: Path, metrics: dict[str, Any], expected: dict[str, float]
) -> None:
    assert variant(child(tmp_path, "big", None, metrics=metrics)).as_a_whole == expected


def test_seconds_and_errors_of_all_repeats_are_taken_together(tmp_path: Path) -> None:
    first = child(tmp_path, "big", None, [{"number": 0, "seconds": 1.0}, {"number": 0, "ok": False, "error": "bad"}])
    second = child(tmp_path, "big", None, [{"number": 0, "seconds": 3.0}, {"number": 0, "ok": False, "error": "bad"}])
    both = variant(first, second)
    assert both.latency is not None
    assert (both.latency["requests"], both.latency["mean"], both.latency["p50"]) == (2, 2, 2)
    assert both.as_a_whole["seconds/p50"] == 2
    assert both.errors == {"bad": 2}


def test_a_variant_without_children_has_nothing() -> None:
    nothing = variant()
    assert (nothing.latency, nothing.errors, nothing.as_a_whole, nothing.by_item) == (None, {}, {}, [])
    assert len(nothing.column("score")) == 0
