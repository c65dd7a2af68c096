"""How fast a batch goes: its rate now or its average, and the chart of its answers, failures, forecast and deadline."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from store.speeds import RECENT_SECONDS
from webapp.pages import charts
from webapp.pages.charts import Chart
from webapp.wire.batches import BatchObject

MIN_SECONDS = 1.0
"""Answers arrive about once a second: a rate over less than that would say more than was measured."""
DEADLINE_SPANS = 2.5
"""The chart reaches to the deadline if that makes it at most this many times as wide."""

PLAIN_POINTS = 40
"""Most points of a line that is drawn without a script."""


@dataclass(frozen=True)
class Rates:
    """Requests and tokens a second; None if not known.

    `seconds` is the time of an average; None if they are recent.
    """

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
    """Return the speed from the start of a batch to its last answer."""
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


def chart(batch: BatchObject, timeline: Sequence[Sequence[float]], now: float) -> str:
    """Return the data of a batch's chart as JSON; empty before its first answer."""
    if len(timeline) < 2:
        return ""
    times = [point[0] for point in timeline]
    answered: list[float | None] = [point[1] for point in timeline]
    # A timeline that an older version has stored has no failures.
    failed: list[float | None] = [point[3] if len(point) > 3 else None for point in timeline]
    rate, ours, total = rates(timeline), batch.batchyard, batch.request_counts.total
    if (
        ours.state is not None
    ):  # it has not ended: the chart goes on to this moment, with the speed that is shown beside it
        rows = recent(timeline, now).rows
        times.append(round(max(now, times[-1]), 1))
        answered.append(answered[-1])
        failed.append(failed[-1])
        rate.append(None if rows is None else round(rows, 1))
    early: list[float | None] = [None] * len(times)
    late = early.copy()
    if ours.eta_earliest_seconds is not None and ours.eta_latest_seconds is not None and total:
        done = timeline[-1][1]
        early[-1] = late[-1] = done
        ahead = sorted({ours.eta_earliest_seconds, ours.eta_latest_seconds} - {0.0})
        times += [round(times[-1] + seconds, 1) for seconds in ahead]
        early += [_line(done, total, seconds, ours.eta_earliest_seconds) for seconds in ahead]
        late += [_line(done, total, seconds, ours.eta_latest_seconds) for seconds in ahead]
        for values in (answered, failed, rate):
            values += [None] * len(ahead)
    deadline = ours.due_at if ours.due_at - times[0] <= DEADLINE_SPANS * (times[-1] - times[0]) else None
    return json.dumps({"deadline": deadline, "data": [times, answered, failed, rate, early, late]})


def plain_charts(series: str) -> list[Chart]:
    """Return the chart as shapes, for visitors without scripts: answers and failures, and rows a second."""
    if not series:
        return []
    times, *columns = json.loads(series)["data"][:4]
    known = [index for index, value in enumerate(columns[0]) if value is not None]
    step = max(1, math.ceil(len(known) / (PLAIN_POINTS - 1)))
    chosen = sorted({*known[::step], known[-1]})
    unit, size = ("minutes", 60) if times[chosen[-1]] - times[0] >= 600 else ("seconds", 1)
    x = [round((times[index] - times[0]) / size, 1) for index in chosen]
    answered, failed, rows = ([column[index] for index in chosen] for column in columns)
    return charts.of_view(
        [
            {
                "kind": "lines",
                "title": f"Requests, by {unit} since the start",
                "x": x,
                "series": [{"name": "answered", "y": answered}, {"name": "failed", "y": failed}],
            },
            {
                "kind": "lines",
                "title": f"Rows a second, by {unit} since the start",
                "x": x,
                "series": [{"name": "rows/s", "y": rows}],
            },
        ]
    )


def _line(done: float, total: float, seconds: float, end: float) -> float:
    """Return what a forecast that ends after `end` seconds has answered after `seconds`."""
    return total if seconds >= end else round(done + (total - done) * seconds / end, 1)
