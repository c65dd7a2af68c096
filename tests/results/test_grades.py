"""The requests of a scored batch are right, wrong or not scored, and are found by that and by their group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from results.filter import Filter
from results.opening import open_rows
from results.rows import Rows, TaskGrades
from store import batches
from store.formats import scores
from store.records import Batch
from tasks.context import AppContext
from tests.support.planned import answers, end_batch, finish_segment, plan_batch

EXPECTED = {1: ("to r1", "sums"), 2: ("7", "sums"), 3: ("to r3", "words"), 5: ("5", "words"), 6: ("6", "words")}


@pytest.fixture
def scored(context: AppContext, project: str) -> Batch:
    """An ended batch of six requests: 1 and 3 are right, 2, 5 and 6 wrong (5 failed), and 4 has no expected answer."""
    batch = plan_batch(context, project, ["?"] * 6, post_process=["score"], expected=EXPECTED)
    finish_segment(context, batch, answers(range(1, 7), failed={5: "timeout"}))
    return end_batch(context, batch)


@pytest.fixture
def rows(context: AppContext, scored: Batch) -> Iterator[Rows]:
    with open_rows(context, scored) as rows:
        yield rows


@pytest.mark.parametrize(
    ("chosen", "lines"),
    [
        (Filter(grade="right"), [1, 3]),
        (Filter(grade="wrong"), [2, 5, 6]),
        (Filter(grade="unscored"), [4]),
        (Filter(task="words"), [3, 5, 6]),
        (Filter(task="words", grade="wrong"), [5, 6]),
        (Filter(task="words", grade="wrong", state="succeeded"), [6]),
        (Filter(task="sums", grade="unscored"), []),
        (Filter(task="word"), []),
    ],
)
def test_a_filter_leaves_requests_by_grade_and_group(rows: Rows, chosen: Filter, lines: list[int]) -> None:
    assert [entry.row.line for entry in rows.page(chosen, 10).entries] == lines


def test_each_request_says_its_grade_and_the_groups_add_up_the_worst_first(rows: Rows) -> None:
    assert [entry.grade for entry in rows.page(Filter(), 10).entries] == [
        *("right", "wrong", "right", "unscored", "wrong", "wrong"),
    ]
    assert rows.grades() == {"right": 2, "wrong": 3, "unscored": 1}
    assert rows.tasks() == [TaskGrades("words", 1, 3), TaskGrades("sums", 1, 2)]


def test_a_batch_without_scores_has_no_grades_and_no_such_filter_finds_anything(
    context: AppContext, project: str
) -> None:
    batch = plan_batch(context, project, ["?"] * 2, post_process=["score"])
    with open_rows(context, batch) as running:
        assert (running.grades(), running.tasks(), running.positions(Filter(grade="unscored")).size) == ({}, [], 0)
    finish_segment(context, batch, answers([1, 2]))
    with open_rows(context, end_batch(context, batch)) as unscored:
        assert (unscored.grades(), unscored.positions(Filter(task="all")).size) == ({}, 0)
        assert [entry.grade for entry in unscored.page(Filter(), 10).entries] == ["", ""]


def test_without_its_scores_a_batch_still_shows_its_answers_and_says_what_is_missing(
    context: AppContext, scored: Batch
) -> None:
    with context.database.read() as session:
        file = batches.find_artifact(session, scored.project_id, scored.id, scores.NAME)
    assert file is not None
    Path(context.artifacts.path(file.sha256)).unlink()
    with open_rows(context, scored) as rows:
        assert [entry.row.text for entry in rows.page(Filter(), 2).entries] == ["to r1", "to r2"]
        assert rows.missing == "The scores of this batch are missing in the artifact store."
