"""Recipe refine: how votes are counted."""

from __future__ import annotations

import pytest

from recipes.extracts import extract
from recipes.refine.policy import Strategy, Vote, count


def votes(*answers: str | None) -> list[Vote]:
    return [Vote(answer) for answer in answers]


@pytest.mark.parametrize("how", ["last_number", "first_line"])
def test_numbers_of_one_value_are_one_vote(how: str) -> None:
    texts = ["95", " 95", "95.0"] if how == "first_line" else ["95", " 95.", "95.0"]
    counted = count(votes(*(extract(how, text) for text in texts)), "unanimous")
    assert (counted.tally, counted.leading, counted.agreed) == ({"95": 3.0}, ["95"], True)


@pytest.mark.parametrize(
    ("strategy", "answers", "leading", "agreed"),
    [
        ("majority", ["a", "b", "b"], ["b"], True),
        ("majority", ["b", "a"], ["b", "a"], True),
        ("majority", ["a", None, None], ["a"], True),
        ("majority", [None, None], [], False),
        ("unanimous", ["a", "a", "a"], ["a"], True),
        ("unanimous", ["a", "a", "b"], ["a"], False),
        ("unanimous", ["a", "a", None], ["a"], False),
        ("unanimous", ["a", "b"], ["a", "b"], False),
        ("unanimous", [None], [], False),
    ],
)
def test_the_strategies(strategy: Strategy, answers: list[str | None], leading: list[str], agreed: bool) -> None:
    counted = count(votes(*answers), strategy)
    assert (counted.leading, counted.agreed) == (leading, agreed)


def test_weights_are_added_exactly() -> None:
    ballots = [Vote("a", 0.1), Vote("a", 0.2), Vote("b", 0.3)]
    assert count(ballots, "weighted").leading == ["a", "b"]
    assert count([*ballots, Vote("b", 0.001)], "weighted").leading == ["b"]
    assert count(ballots, "majority").leading == ["a"]
