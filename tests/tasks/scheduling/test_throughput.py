"""Only answers of an engine measure its speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from sqlalchemy import select, update

from batchyard.models import ModelSpec
from store import segments, speeds
from store.database import Database
from store.records import Batch, Segment, Speed
from store.speeds import Throughput
from tasks.scheduling.forecast import single
from tasks.scheduling.throughput import ThroughputMeter

COLUMNS = ("input_tokens", "output_tokens", "seconds")
SPEC = ModelSpec(name="echo", engine="echo", max_in_flight=96)


def computed(number: int, seconds: float | None = 0.01) -> pa.Table:
    """Answers of an engine, with 9 tokens each."""
    columns = {name: pa.array([0] * number, pa.int64()) for name in ("line", "cached_tokens", "output_tokens")}
    columns |= {
        "input_tokens": pa.array([9] * number, pa.int64()),
        "seconds": pa.array([seconds] * number, pa.float64()),
    }
    return pa.table(columns)


class MovedClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = time.time()

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    clock = MovedClock()
    monkeypatch.setattr(time, "time", lambda: clock.now)
    return clock


def meters(database: Database, batch: Batch, spec: ModelSpec = SPEC) -> list[ThroughputMeter]:
    """Start all segments of the batch; a meter for each."""
    meters = []
    with database.write() as session:
        for segment_id in session.scalars(select(Segment.id).where(Segment.batch_id == batch.id)):
            work = segments.start(session, segment_id, segments.dispatch(session, segment_id, 30) or 0, "test", 30)
            assert work is not None
            meters.append(ThroughputMeter(work, spec))
    return meters


def test_segments_side_by_side_count_no_second_twice(
    database: Database, new_batch: Callable[..., Batch], clock: MovedClock
) -> None:
    """The second segment waits long; that is no lead, and the first one's time does not count for it."""
    first, second = meters(database, new_batch(100, 100), ModelSpec(name="echo", engine="echo", max_in_flight=1))
    for meter in (first, first, first, second, first, second):
        clock.wait(0.05)
        with database.write() as session:
            meter.measure(session, computed(10))
            session.execute(update(Segment).where(Segment.number == 0).values(answered=10))
    with database.read() as session:
        speed = session.scalars(select(Speed)).one()
    assert speed.requests == pytest.approx(60, rel=0.01)
    assert 5 * 0.05 <= speed.seconds <= 6 * 0.05


def test_answers_from_the_cache_are_no_measure_of_an_engines_speed(
    database: Database, new_batch: Callable[..., Batch], clock: MovedClock
) -> None:
    (meter,) = meters(database, new_batch(100))
    with database.write() as session:
        meter.measure(session, computed(0))
    assert throughput(database) is None
    with database.write() as session:
        meter.measure(session, computed(6))
    with database.read() as session:
        speed = session.scalars(select(Speed)).one()
    assert (speed.requests, speed.tokens, speed.measurements) == (6, 54, 0), "the first of the engine's is its lead"


def test_requests_that_run_alone_are_no_measure_of_a_models_speed(
    database: Database, new_batch: Callable[..., Batch], clock: MovedClock
) -> None:
    step = {"step": "verify", "batch_id": "batch_1", "alone": True}
    (meter,) = meters(database, new_batch(100, post_process=[step]))
    with database.write() as session:
        assert meter.measure(session, computed(6)) > 0, "it costs the model's time all the same"
    assert throughput(database) is None


def test_the_first_answers_tell_the_lead_from_the_speed(
    database: Database, new_batch: Callable[..., Batch], clock: MovedClock
) -> None:
    """Eight requests that an engine took 0.02 s for, after half a second of other things."""
    (meter,) = meters(database, new_batch(8))
    clock.wait(0.5)
    with database.write() as session:
        meter.measure(session, computed(8, seconds=0.02))
    measured = throughput(database)
    assert measured is not None
    assert 0.45 < measured.lead.seconds < 0.5
    assert measured.lead.deviation > 0.25, "a single one says little"
    assert measured.work_per_second == pytest.approx(80 / 0.02, rel=0.01)
    assert measured.in_flight == pytest.approx(8, rel=0.01)


def test_requests_that_began_together_and_come_one_after_the_other_are_no_speed(
    database: Database, new_batch: Callable[..., Batch], clock: MovedClock
) -> None:
    """Eight requests take 0.3 s. One answer is recorded before the seven others, which come at the same moment."""
    (meter,) = meters(database, new_batch(8))
    clock.wait(0.4)
    for number in (1, 7):
        with database.write() as session:
            meter.measure(session, computed(number, seconds=0.3))
    measured = throughput(database)
    assert measured is not None
    assert 80 / 3 < measured.work_per_second < 1.05 * 80 / 0.3


def test_few_answers_that_trickle_in_are_no_speed_of_a_full_engine(
    database: Database, new_batch: Callable[..., Batch], clock: MovedClock
) -> None:
    """Eight requests take 0.1 s, and the machine is so busy that their answers come in the course of half a second."""
    (meter,) = meters(database, new_batch(8))
    clock.wait(0.2)
    for number in (1, 5, 2):
        clock.wait(0.15)
        with database.write() as session:
            meter.measure(session, computed(number, seconds=0.1))
    measured = throughput(database)
    assert measured is not None
    assert measured.measurements == 0
    forecast = single(1200 * 100, replace(measured, bytes_per_request=100.0), 0.0, now=0.0)
    assert forecast.earliest < 1200 * 0.1 / 96 < forecast.latest, "a full engine may be as fast as that"


def test_segments_that_begin_together_on_an_idle_engine_are_measured_together(
    database: Database, new_batch: Callable[..., Batch], clock: MovedClock
) -> None:
    """A few answers right after those of another segment are no speed by themselves."""
    for meter, number in zip(meters(database, new_batch(100, 100)), (20, 4), strict=True):
        clock.wait(0.1)
        with database.write() as session:
            meter.measure(session, computed(number, seconds=0.1))
            session.execute(update(Segment).where(Segment.number == 0).values(answered=20))
    measured = throughput(database)
    assert measured is not None
    assert (measured.requests, measured.measurements) == (24, 0)
    assert measured.work_per_second < 1.001 * 240 / 0.2


def test_first_answers_are_a_speed_once_the_engine_was_full_for_twice_as_long_as_one_takes(
    database: Database, new_batch: Callable[..., Batch], clock: MovedClock
) -> None:
    """The engine holds fewer requests than its configuration says."""
    (meter,) = meters(database, new_batch(100))
    meter.expect(100, limit=4)
    measurements = []
    for _ in range(4):
        clock.wait(0.11)
        with database.write() as session:
            meter.measure(session, computed(4, seconds=0.1))
        measured = throughput(database)
        assert measured is not None
        measurements.append(round(measured.measurements))
    assert measurements[:2] == [0, 1]
    assert measured.measurements > 1
    assert measured.speed(100)[1] < 0.7, "no more than four fit into it"


def test_an_engine_that_does_not_say_how_long_a_request_took_is_measured_all_the_same(
    database: Database, new_batch: Callable[..., Batch], clock: MovedClock
) -> None:
    (meter,) = meters(database, new_batch(100))
    for _ in range(3):
        clock.wait(0.05)
        with database.write() as session:
            meter.measure(session, computed(10, seconds=None))
    measured = throughput(database)
    assert measured is not None and 0 < measured.work_per_second < 1.001 * 100 / 0.05


def test_after_a_batch_of_eight_the_end_of_twelve_hundred_lies_in_the_range(
    database: Database, new_batch: Callable[..., Batch], clock: MovedClock
) -> None:
    """The engine may run all it takes at once as fast as eight, or be no faster with more of them."""
    (meter,) = meters(database, new_batch(8))
    clock.wait(0.5)
    with database.write() as session:
        meter.measure(session, computed(8, seconds=0.1))
    measured = throughput(database)
    assert measured is not None
    forecast = single(1200 * 100, replace(measured, bytes_per_request=100.0), 0.0, now=0.0)
    for requests_at_once in (8, 96):
        assert forecast.earliest < 0.5 + 1200 * 0.1 / requests_at_once < forecast.latest
    assert forecast.earliest < 0.5 + 1200 * 0.04 / 96, "the first requests of an engine take longer than later ones"
    assert forecast.latest < 90, "it says something"


def throughput(database: Database) -> Throughput | None:
    with database.read() as session:
        return speeds.throughputs(session, {"echo": SPEC}).get(("echo", "decode"))
