"""Two batches side by side: which requests they share, which got better or worse, and which answers differ."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from results.opening import open_rows
from results.pairs import Only, Pairs
from store.records import Batch
from tasks.context import AppContext
from tests.support.planned import answers, end_batch, finish_segment, plan_batch, started

EXPECTED = dict.fromkeys(range(1, 6), ("yes", "all"))


def ended(
    context: AppContext,
    project: str,
    texts: Mapping[int, str],
    *,
    failed: Mapping[int, str] | None = None,
    expected: Mapping[int, tuple[str, str]] = EXPECTED,
) -> Batch:
    """An ended batch of six requests with these answers; the last has no expected answer."""
    batch = plan_batch(context, project, ["?"] * 6, post_process=["score"], expected=expected)
    finish_segment(context, batch, answers(range(1, 7), texts={6: "so", **texts}, failed=failed))
    return end_batch(context, batch)


@pytest.fixture
def two(context: AppContext, project: str) -> tuple[Batch, Batch]:
    """Line 1 is right in both; 2 got worse; 3 got better; 4 is wrong in both, in other words; 5 failed and is right
    then; 6 has no expected answer and failed then."""
    first = ended(context, project, {1: "yes", 2: "yes", 3: "no", 4: "no"}, failed={5: "timeout"})
    second = ended(context, project, {1: "yes", 2: "no", 3: "yes", 4: "never", 5: "yes"}, failed={6: "timeout"})
    return first, second


@pytest.mark.parametrize(
    ("only", "lines"),
    [
        ("", [1, 2, 3, 4, 5, 6]),
        ("differ", [2, 3, 4, 5, 6]),
        ("changed", [2, 3, 5, 6]),
        ("worse", [2, 6]),
        ("better", [3, 5]),
    ],
)
def test_a_page_has_only_the_pairs_that_were_asked_for(
    context: AppContext, two: tuple[Batch, Batch], only: Only, lines: list[int]
) -> None:
    with open_rows(context, two[0]) as first, open_rows(context, two[1]) as second:
        pairs = Pairs(first, second)
        assert [pair.first.row.line for pair in pairs.page(10, only=only).pairs] == lines
        one = pairs.page(1, only=only)
        assert [pair.first.row.line for pair in one.pairs] == lines[:1]
        assert [pair.first.row.line for pair in pairs.page(10, only=only, after=one.after).pairs] == lines[1:]


def test_the_other_way_round_what_was_worse_is_better(context: AppContext, two: tuple[Batch, Batch]) -> None:
    with open_rows(context, two[0]) as first, open_rows(context, two[1]) as second:
        forth, back = Pairs(first, second), Pairs(second, first)
        assert [pair.change for pair in forth.page(10).pairs] == ["", "worse", "better", "", "better", "worse"]
        assert [pair.change for pair in back.page(10).pairs] == ["", "better", "worse", "", "worse", "better"]
        assert forth.goods == {"both": 1, "first": 2, "second": 2, "neither": 1}
        assert forth.graded


def test_without_scores_of_both_success_decides(context: AppContext, project: str) -> None:
    first = ended(context, project, {1: "yes"}, failed={2: "timeout"}, expected={})
    second = ended(context, project, {1: "no"}, failed={1: "timeout"})
    with open_rows(context, first) as one, open_rows(context, second) as other:
        pairs = Pairs(one, other)
        assert not pairs.graded
        assert [pair.change for pair in pairs.page(10).pairs] == ["worse", "better", "", "", "", ""]


def test_what_is_not_answered_yet_has_won_and_lost_nothing(context: AppContext, project: str) -> None:
    first = ended(context, project, {1: "yes"})
    second = plan_batch(context, project, ["?"] * 6)
    started(context.database, second)
    with open_rows(context, first) as one, open_rows(context, second) as other:
        pairs = Pairs(one, other)
        assert (pairs.shared, sum(pairs.goods.values())) == (6, 0)
        assert pairs.page(10, only="changed").pairs == []
