"""One definition of a batch's speed, beside its progress and in its chart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from webapp.pages import speed
from webapp.pages.speed import Rates
from webapp.wire.batches import BatchObject


def timeline(*chunks: tuple[float, int]) -> list[list[float]]:
    """Answers at these times, with 10 tokens each, of which one in ten failed."""
    points: list[list[float]] = [[1000.0, 0, 0, 0]]
    for at, requests in chunks:
        _, answered, tokens, failed = points[-1]
        points.append([at, answered + requests, tokens + 10 * requests, failed + requests // 10])
    return points


EVEN = timeline(*((1010.0 + 5 * number, 50) for number in range(20)))


def test_the_first_answers_start_the_clock_and_a_cold_start_is_not_counted() -> None:
    assert speed.recent(EVEN, EVEN[-1][0]) == Rates(pytest.approx(10.0), pytest.approx(100.0))  # type: ignore[arg-type]
    assert speed.recent(EVEN, EVEN[-1][0] + 100) == Rates(None, None), "nothing in the last minute"
    assert speed.recent(EVEN[:2], 1010.0) == speed.recent([], 1.0) == Rates(None, None), "not measured yet"


def test_answers_that_come_at_once_are_no_burst() -> None:
    assert speed.recent(timeline((1010.0, 500), (1010.1, 500)), 1010.1).rows == 500


def test_the_chart_ends_with_the_speed_that_stands_beside_it() -> None:
    rates = speed.rates(EVEN)
    assert rates[:2] == [None, None]
    assert all(rate == 10.0 for rate in rates[2:])
    assert rates[-1] == speed.recent(EVEN, EVEN[-1][0]).rows


def test_an_ended_batch_has_its_average_from_its_start_to_its_last_answer() -> None:
    assert speed.average(EVEN) == Rates(pytest.approx(1000 / 105), pytest.approx(10_000 / 105), 105.0)  # type: ignore[arg-type]
    assert speed.average(EVEN[:1]).rows is None


def shown(**ours: Any) -> BatchObject:
    """As much of a batch as the chart needs."""
    values = {"due_at": 1300, "eta_earliest_seconds": None, "eta_latest_seconds": None, "state": None} | ours
    extension: Any = type("Extension", (), values)
    counts: Any = type("Counts", (), {"total": 2000})
    batch: Any = type("Shown", (), {"batchyard": extension, "request_counts": counts})
    return batch  # type: ignore[no-any-return]


def test_the_chart_has_failures_the_deadline_and_a_band_where_the_end_is_expected() -> None:
    chart = json.loads(
        speed.chart(shown(state="running", eta_earliest_seconds=50.0, eta_latest_seconds=100.0), EVEN, 1110.0)
    )
    times, answered, failed, rate, early, late = chart["data"]
    assert len({len(values) for values in chart["data"]}) == 1
    assert times[-3:] == [1110.0, 1160.0, 1210.0]
    assert answered[-3:] == [1000, None, None] and failed[-3:] == [100, None, None]
    assert rate[-3] == pytest.approx(speed.recent(EVEN, 1110.0).rows, abs=0.05)
    assert early[-4:] == [None, 1000, 2000, 2000]
    assert late[-4:] == [None, 1000, 1500, 2000]
    assert chart["deadline"] == 1300


def test_the_chart_is_drawn_for_visitors_without_scripts() -> None:
    long = timeline(*((1010.0 + 20 * number, 50) for number in range(200)))
    for points, unit in ((EVEN, "seconds"), (long, "minutes")):
        for batch in (shown(), shown(state="running", eta_earliest_seconds=50.0, eta_latest_seconds=100.0)):
            counted, rates = speed.plain_charts(speed.chart(batch, points, points[-1][0] + 1))
            assert counted.title == f"Requests, by {unit} since the start"
            answered, failed = counted.lines
            assert 15 <= len(answered.points) == len(failed.points) <= speed.PLAIN_POINTS
            heights = [y for _, y in answered.points]
            assert heights == sorted(heights, reverse=True) and heights[0] > heights[-1]
            assert rates.lines[0].points
    assert speed.plain_charts("") == []


def test_a_deadline_far_away_does_not_squeeze_the_chart() -> None:
    assert json.loads(speed.chart(shown(due_at=90_000), EVEN, 1110.0))["deadline"] is None
    assert speed.chart(shown(), EVEN[:1], 1110.0) == ""


def test_the_chart_of_an_older_batch_has_no_failures() -> None:
    older = [point[:3] for point in EVEN]
    assert json.loads(speed.chart(shown(), older, 1110.0))["data"][2] == [None] * len(older)
