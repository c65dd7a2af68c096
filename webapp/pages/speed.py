"""How fast a batch goes: its rate now or its average, and charts of its answers, failures, forecast and deadline."""

from collections.abc import Sequence
from dataclasses import dataclass

from batchyard.recipes.blocks import Lines, Series
from store.speeds import RECENT_SECONDS
from webapp.pages.charts.lines import over_time
from webapp.pages.charts.shapes import Chart
from webapp.wire.batches import BatchObject

MIN_SECONDS = 1.0
"""Answers arrive about once a second: a rate over less than that would say more than was measured."""
DEADLINE_SPANS = 2.5
"""The chart reaches to the deadline if that makes it at most this many times as wide."""
UNITS = (("h", 3600), ("min", 60), ("s", 1))
"""Units of the time since the start, with their seconds. The chart has the largest of which it covers three."""
EXPECTED = "expected"


@dataclass(frozen=True)
class Rates:
    """Requests and tokens a second; None if not known. `seconds` is the time of an average; None if they are recent."""

    rows: float | None
    tokens: float | None
    seconds: float | None = None


def recent(timeline: Sequence[Sequence[float]], now: float) -> Rates:
    """Return the speed over the minute before `now`, as `batchyard.rows_per_second` of the API counts it."""
    points = [point for point in timeline[1:] if point[0] > now - RECENT_SECONDS]
    if len(points) < 2:
        return Rates(None, None)
    seconds = max(now - points[0][0], MIN_SECONDS)
    return Rates(*((points[-1][column] - points[0][column]) / seconds for column in (1, 2)))


def average(timeline: Sequence[Sequence[float]]) -> Rates:
    if len(timeline) < 2:
        return Rates(None, None)
    seconds = max(timeline[-1][0] - timeline[0][0], MIN_SECONDS)
    return Rates(timeline[-1][1] / seconds, timeline[-1][2] / seconds, seconds)


def rates(timeline: Sequence[Sequence[float]]) -> list[float | None]:
    """Return the requests a second at each point: as `recent`, or since the point before it if that is further back."""
    values: list[float | None] = []
    start = 1
    for end, point in enumerate(timeline):
        while start < end - 1 and timeline[start][0] <= point[0] - RECENT_SECONDS:
            start += 1
        if end < 2:
            values.append(None)
        else:
            seconds = max(point[0] - timeline[start][0], MIN_SECONDS)
            values.append(round((point[1] - timeline[start][1]) / seconds, 1))
    return values


def draw(batch: BatchObject, timeline: Sequence[Sequence[float]], now: float) -> list[Chart]:
    """Return the charts of a batch, none before its first answer: its requests, and its rows a second if measured."""
    if len(timeline) < 2:
        return []
    start = timeline[0][0]
    measured = rates(timeline)
    points = [*timeline]
    if batch.batchyard.state is not None:  # it has not ended: go on to now, at the speed that stands beside the chart
        rate = recent(timeline, now).rows
        points.append([max(now, points[-1][0]), *points[-1][1:]])
        measured.append(None if rate is None else round(rate, 1))
    ours, total, done = batch.batchyard, batch.request_counts.total, points[-1][1]
    earliest, latest = ours.eta_earliest_seconds, ours.eta_latest_seconds
    ahead: list[float] = []  # seconds from now to the ends of the forecast
    expected: list[Series] = []
    if earliest is not None and latest is not None and total:
        ahead = sorted({earliest, latest} - {0.0})
        before: list[float | None] = [None] * (len(points) - 1)
        low, high = ([*before, done, *(_line(done, total, at, end) for at in ahead)] for end in (latest, earliest))
        expected = [Series(name=EXPECTED, y=[None] * (len(points) + len(ahead)), low=low, high=high)]
    times = [point[0] for point in points] + [points[-1][0] + seconds for seconds in ahead]
    unknown: list[float | None] = [None] * len(ahead)
    answered, failed = ([*(point[column] for point in points), *unknown] for column in (1, 3))
    rows = [*measured, *unknown]
    unit, size = next((unit, size) for unit, size in UNITS if times[-1] - start >= 3 * size or size == 1)
    x = [round((at - start) / size, 3) for at in times]
    series = [Series(name="answered", y=answered), Series(name="failed", y=failed), *expected]
    blocks = [Lines(title="Requests", x=x, series=series)]
    if known := [rate for rate in rows if rate is not None]:
        speeds = Series(name="rows/s over the previous minute", y=rows)
        blocks.append(Lines(title="Rows per second", x=x, series=[speeds], y_range=(0, max(known) or 1)))
    due_at = ours.due_at
    is_near = due_at - start <= DEADLINE_SPANS * (times[-1] - start)
    marks = {"deadline": (due_at - start) / size} if is_near else {}
    looks = {"failed": 4, EXPECTED: 3}
    return [over_time(block, unit=unit, marks=marks, looks=looks) for block in blocks]


def _line(done: float, total: float, seconds: float, end: float) -> float:
    """Return what a forecast that ends after `end` seconds has answered after `seconds`."""
    return total if seconds >= end else round(done + (total - done) * seconds / end, 1)
