"""One definition of a batch's speed, beside its progress and in its chart."""

from __future__ import annotations

from typing import Any

import pytest

from webapp.pages import speed
from webapp.pages.charts.shapes import Chart
from webapp.pages.formats import NOTHING
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


RUNNING = {"state": "running", "eta_earliest_seconds": 50.0, "eta_latest_seconds": 100.0}


def labels(chart: Chart) -> list[str]:
    """The labels below a chart, from left to right."""
    return [text.text for text in sorted(chart.texts, key=lambda text: text.x) if text.y > 190]


def test_the_charts_have_failures_the_deadline_and_a_band_where_the_end_is_expected() -> None:
    requests, rates = speed.draw(shown(**RUNNING), EVEN, 1110.0)
    assert requests.columns == ["", "answered", "failed", "expected", "low", "high"]
    assert requests.rows[-3:] == [
        ["1.833", "1,000", "100", NOTHING, "1,000", "1,000"],
        ["2.667", NOTHING, NOTHING, NOTHING, "1,500", "2,000"],
        ["3.5", NOTHING, NOTHING, NOTHING, "2,000", "2,000"],
    ]
    assert float(rates.rows[-3][1]) == pytest.approx(speed.recent(EVEN, 1110.0).rows, abs=0.05)
    answered, failed, expected = requests.lines
    assert failed.index != answered.index and expected.band.endswith("Z")
    (deadline,) = requests.marks
    assert answered.points[-1][0] < deadline
    assert "deadline" in [text.text for text in requests.texts]


def test_what_was_answered_never_falls_in_the_chart() -> None:
    long = timeline(*((1010.0 + 20 * number, 50) for number in range(200)))
    requests, _ = speed.draw(shown(), long, long[-1][0])
    heights = [float(point.partition(",")[2]) for point in requests.lines[0].path.removeprefix("M").split("L")]
    assert heights == sorted(heights, reverse=True) and heights[0] > heights[-1]


@pytest.mark.parametrize(
    ("seconds", "unit"), [(0.02, "s"), (1.0, "s"), (170.0, "s"), (200.0, "min"), (7000.0, "min"), (90_000.0, "h")]
)
def test_the_times_below_a_chart_differ_and_the_last_says_their_unit(seconds: float, unit: str) -> None:
    points = timeline((1000.0 + seconds / 2, 500), (1000.0 + seconds, 500))
    for chart in speed.draw(shown(due_at=10**9), points, points[-1][0]):
        words = labels(chart)
        assert len(set(words)) == len(words) >= 3, words
        assert [word for word in words if word.endswith(f" {unit}")] == [words[-1]]


def test_a_deadline_far_away_does_not_squeeze_the_chart() -> None:
    assert [chart.marks for chart in speed.draw(shown(due_at=90_000), EVEN, 1110.0)] == [[], []]


def test_there_is_no_chart_before_the_first_answer() -> None:
    assert speed.draw(shown(), EVEN[:1], 1110.0) == speed.draw(shown(), [], 1110.0) == []
