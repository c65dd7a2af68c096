"""Items by the scores of their samples."""

from __future__ import annotations

import pytest

from jobs.items import listing
from tests.support.written_jobs import NUMBERS, Written


def test_items_that_are_sometimes_right_are_found_some_lines_at_a_time(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = {"text": "a", "score": 1.0}, {"text": "b", "score": 0}
    written.end((0, "completed"), samples=[right, wrong])
    written.end((1, "completed"), (2, "completed"), samples=[right, right])
    written.end((3, "failed"), samples=[right, wrong])
    written.end((4, "completed"), samples=[wrong, {"text": None, "error": {}}, right])
    written.end((5, "completed"))

    def mixed(after: int, limit: int = 10, kind: listing.Kind = "sometimes_right") -> tuple[list[int], int | None]:
        found, following = listing.scored_page(written.context, written.job, kind, after, limit)
        return [item.number for item in found], following

    assert mixed(0) == ([NUMBERS[0], NUMBERS[4]], None)
    assert mixed(0, limit=1) == ([NUMBERS[0]], 1)
    assert mixed(1) == ([NUMBERS[4]], None)
    monkeypatch.setattr(listing, "SCORED_ROWS", 3)
    assert mixed(1) == ([], 4)
    assert mixed(4) == ([NUMBERS[4]], None)
    monkeypatch.setattr(listing, "SCORED_BYTES", 1)
    assert mixed(0) == ([NUMBERS[0]], 1)
    assert mixed(1) == ([], 2)
    found, _ = listing.scored_page(written.context, written.job, "sometimes_right", 4, 1)
    assert found[0].scores == [0.0, 1.0]


def test_items_with_a_wrong_or_a_missing_answer_are_wrong_whether_they_completed_or_not(written: Written) -> None:
    right, partly = {"text": "a", "score": 1.0, "acc": None}, {"text": "b", "score": 0.5, "acc": 1.0}
    written.end((0, "completed"), samples=[right, {"text": "c", "score": 0.9, "acc": 0.0}])
    written.end((1, "completed"), samples=[right, partly])
    written.end((2, "failed"), samples=[{"text": None, "score": 0.0, "error": {}}])
    written.end((3, "completed"))
    wrong, _ = listing.scored_page(written.context, written.job, "wrong", 0, 10)
    assert [(item.number, item.scores) for item in wrong] == [(NUMBERS[0], [1.0, 0.9]), (NUMBERS[2], [0.0])]
