"""Which options the children of an experiment have."""

from __future__ import annotations

from typing import Any

from batchyard.recipes import Child
from recipes.experiment.recipe import Experiment, experiment


def children(**options: Any) -> list[Child]:
    values = {"recipe": "rollout", "variants": {"small": {}}} | options
    assert experiment.children is not None
    return list(experiment.children(Experiment.model_validate(values)))


def test_a_variants_options_come_over_those_of_all_key_by_key_and_lists_are_replaced() -> None:
    options = {"n": 2, "sampling.temperature": 0.8, "sampling": {"stop": ["a"], "max_tokens": 8}}
    (child,) = children(options=options, variants={"big": {"sampling": {"temperature": 0.1}, "sampling.stop": ["b"]}})
    assert child.options == {"n": 2, "sampling": {"temperature": 0.1, "stop": ["b"], "max_tokens": 8}}


def test_tiers_are_names_of_models_where_an_option_holds_one_and_nowhere_else() -> None:
    options = {
        "model": "large",
        "tiers": ["tiny", {"model": "large", "budget": 2}],
        "reviewer": "large",
        "judge": {"model": "tiny", "prompt": "large"},
        "system": "large",
        "agents": [{"role": "tiny", "model": "tiny"}, "large"],
    }
    (child,) = children(options=options, tiers={"large": "mini", "tiny": "nano"})
    assert child.options == {
        "model": "mini",
        "tiers": ["nano", {"model": "mini", "budget": 2}],
        "reviewer": "mini",
        "judge": {"model": "nano", "prompt": "large"},
        "system": "large",
        "agents": [{"role": "tiny", "model": "nano"}, "large"],
    }


def test_there_is_a_child_for_each_variant_repeat_and_round_and_later_rounds_stand_behind() -> None:
    own = children(variants={"a": {}, "b": {}}, repeats=2, rounds=2, round_input="best.jsonl")
    assert [child.key for child in own] == [
        *("a/0/0", "b/0/0", "a/1/0", "b/1/0"),
        *("a/0/1", "b/0/1", "a/1/1", "b/1/1"),
    ]
    assert [child.before for child in own[4:]] == ["a/0/0", "b/0/0", "a/1/0", "b/1/0"]
    assert {child.artifact for child in own[4:]} == {"best.jsonl"}
    assert {child.artifact for child in own[:4]} == {None}


def test_the_place_of_an_option_is_where_it_was_written() -> None:
    options = Experiment.model_validate({"recipe": "rollout", "variants": {"big": {"sampling.temperature": 2, "n": 1}}})
    places = {path: options.place("big", path) for path in ("options.sampling.temperature", "options.n", "options.m")}
    assert list(places.values()) == [
        *("options.variants.big.sampling.temperature", "options.variants.big.n", "options.options.m")
    ]
    assert options.place("big", "recipe") == "options.recipe"
