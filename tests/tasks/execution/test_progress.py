"""Published progress holds what the records say and nothing else, and can be lost without harm."""

from __future__ import annotations

import time

import pytest

from store import batches
from store.records import Batch
from tasks.context import AppContext
from tasks.execution import progress
from tasks.scheduling import deadlines
from tasks.scheduling.forecast import Forecast
from tests.support.planned import answers, append, plan_batch, started


@pytest.fixture
def batch(connected: AppContext, project: str) -> Batch:
    return plan_batch(connected, project, ["one", "two", "three", "four"])


def test_counts_come_from_the_records(connected: AppContext, batch: Batch) -> None:
    append(connected, started(connected.database, batch), answers([1, 2, 3], failed={3: "too_long"}))
    measured = progress.measure(connected, batch.id)
    assert (measured["status"], measured["total"], measured["sla"]) == ("in_progress", 4, "on_track")
    assert (measured["completed"], measured["failed"]) == (2, 1)


def test_what_was_not_measured_is_unknown(connected: AppContext, batch: Batch) -> None:
    measured = progress.measure(connected, batch.id)
    assert (measured["rows_per_second"], measured["tokens_per_second"], measured["eta_seconds"]) == (None, None, None)


@pytest.mark.usefixtures("frozen_time")
def test_an_eta_counts_from_now_and_is_never_in_the_past(connected: AppContext, batch: Batch) -> None:
    now = progress.measure(connected, batch.id)["updated_at"]
    deadlines.publish(connected, batch.id, Forecast(now + 100, now + 50, now + 200))
    assert progress.measure(connected, batch.id)["eta_seconds"] == pytest.approx(100, abs=5)
    deadlines.publish(connected, batch.id, Forecast(now - 100, now - 100, now - 100))
    assert progress.measure(connected, batch.id)["eta_seconds"] == 0.0


def test_a_batch_that_is_ending_has_no_eta_and_no_rates(connected: AppContext, batch: Batch) -> None:
    append(connected, started(connected.database, batch), answers([1, 2]))
    now = progress.measure(connected, batch.id)["updated_at"]
    deadlines.publish(connected, batch.id, Forecast(now + 100, now + 50, now + 200))
    with connected.database.write() as session:
        batches.cancel(session, batch.project_id, batch.id)
    measured = progress.measure(connected, batch.id)
    assert (measured["status"], measured["rows_per_second"], measured["eta_seconds"]) == ("cancelling", None, None)


def test_progress_is_read_as_it_was_published(connected: AppContext, batch: Batch) -> None:
    assert progress.read(connected, [batch.id]) == {}
    progress.publish(connected, batch.id)
    published = progress.read(connected, [batch.id, "batch_other"])
    assert list(published) == [batch.id]
    assert published[batch.id] | {"updated_at": 0} == progress.measure(connected, batch.id) | {"updated_at": 0}
    assert progress.read(connected, []) == {}


def test_rates_of_more_than_a_minute_ago_are_not_shown_as_those_of_now(
    connected: AppContext, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress.publish(connected, batch.id)
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    assert progress.read(connected, [batch.id]) == {}


def test_a_redis_that_is_away_stops_no_work(context: AppContext, project: str) -> None:
    batch = plan_batch(context, project, ["one"])
    progress.publish(context, batch.id)
    assert progress.read(context, [batch.id]) == {}
