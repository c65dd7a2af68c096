"""The requests of a refinement: those of its tiers, voters, arbiter and reviewer, with their own sampling."""

from __future__ import annotations

from typing import Any

from batchyard.recipes import Ask, Check
from recipes.refine import asks
from recipes.refine.options import Refine


def options(**changes: Any) -> Refine:
    tiers = [{"model": "small"}, {"model": "large", "sampling": {"temperature": 0.2}}]
    return Refine.model_validate({"tiers": tiers, "sampling": {"temperature": 0.7}} | changes)


VOTES = {"models": ["a", "b"], "n": 2, "extract": "last_number", "arbiter": {"model": "judge"}}
FULL = {"votes": VOTES, "reviewer": {"model": "reader"}, "gates": [{"gate": "not-empty"}]}


def test_there_is_a_stage_for_each_part_that_asks() -> None:
    assert asks.stages(options()) == ["answer"]
    assert asks.stages(options(reviewer={"model": "reader"})) == ["answer", "review"]
    assert asks.stages(options(**FULL)) == ["answer", "vote", "arbiter", "review"]


def test_a_tier_samples_as_it_says_or_as_all_do() -> None:
    first, second = (asks.answer(options(), tier, "task") for tier in (0, 1))
    assert (first.model, first.sampling["temperature"]) == ("small", 0.7)
    assert (second.model, second.sampling["temperature"]) == ("large", 0.2)


def test_each_voter_has_as_many_votes_as_any_other() -> None:
    full = options(**FULL)
    assert full.votes is not None
    assert [ask.model for ask in asks.votes(full, full.votes, "task")] == ["a", "a", "b", "b"]


def test_an_arbiter_chooses_a_number_and_nothing_else() -> None:
    full = options(**FULL)
    assert full.votes is not None and full.votes.arbiter is not None
    ask = asks.arbiter(full.votes.arbiter, "which?", 3)
    assert (ask.stage, ask.model, ask.structure) == ("arbiter", "judge", {"choice": ["1", "2", "3"]})


def test_the_probe_has_one_of_each_so_that_a_model_that_is_not_there_is_known_at_once() -> None:
    wants = asks.probe(options(**FULL))
    models = {want.model for want in wants if isinstance(want, Ask)}
    assert models == {"small", "large", "a", "b", "judge", "reader"}
    assert [want.gate for want in wants if isinstance(want, Check)] == ["not-empty"]
