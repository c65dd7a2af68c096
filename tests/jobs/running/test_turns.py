"""How many requests a job's items will still make."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from jobs.running.turns import TurnCounts, Turns, requests_ahead


def turns(*counts: tuple[int, int, int]) -> Turns:
    return Turns([TurnCounts(begun, complete, Counter(mini=requests)) for begun, complete, requests in counts])


def test_nothing_is_known_before_an_item_has_shown_each_turn() -> None:
    assert requests_ahead(Turns(), [], {}, 10) is None
    assert requests_ahead(turns((4, 0, 12)), [(1, 4)], {}, 6) is None
    assert requests_ahead(turns((4, 2, 12), (2, 0, 2)), [(1, 2), (2, 2)], {}, 6) is None


def test_items_that_have_not_begun_make_the_mean_requests_of_each_turn() -> None:
    # Every item asks 3 and then 1; all have gone on.
    assert requests_ahead(turns((4, 4, 12), (4, 4, 4)), [], {}, 10) == {"mini": 40}


def test_an_item_makes_the_requests_after_its_turn_as_far_as_items_go() -> None:
    # Half of the items go on to the second turn.
    assert requests_ahead(turns((8, 8, 8), (4, 4, 8)), [(1, 2)], {}, 0) == {"mini": 2}


def test_requests_that_stand_in_no_segment_count() -> None:
    assert requests_ahead(turns((2, 2, 2)), [], {"mini": 7}, 0) == {"mini": 7}


def test_an_item_has_the_turns_left_that_items_go_to() -> None:
    counts = turns((8, 8, 8), (4, 4, 8))
    assert [counts.left(turn) for turn in (0, 1, 2)] == [1.5, 0.5, 0]


def test_counts_survive_the_records() -> None:
    counts = turns((8, 7, 8), (4, 4, 8))
    assert Turns.from_json(counts.to_json()).to_json() == counts.to_json()


def test_the_outlook_of_random_items_is_near_what_they_make() -> None:
    draws = random.Random(3)
    lengths = [1 + sum(draws.random() < 0.6 for _ in range(5)) for _ in range(4000)]
    counts = Turns()
    for length in lengths[:2000]:
        for turn in range(1, length + 1):
            counts[turn].begun += 1
            counts[turn].complete += 1
            counts[turn].requests["mini"] += 2
    ahead = requests_ahead(counts, [], {}, 2000)
    assert ahead is not None
    assert ahead["mini"] == pytest.approx(2 * sum(lengths[2000:]), rel=0.05)
