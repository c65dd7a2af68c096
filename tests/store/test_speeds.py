"""Speeds follow what is measured, and a model without measurements has none."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from store import speeds
from store.database import Database
from store.records import Speed
from store.speeds import Measurement, Throughput

KEY = ("m", "config", "decode")


def measured(seconds: float, requests: int, tokens: int = 0) -> Measurement:
    return Measurement(seconds=seconds, requests=requests, bytes=100.0 * requests, tokens=tokens)


def known(database: Database) -> Throughput | None:
    with database.read() as session:
        return speeds.throughputs(session, {"m": "config"}).get(("m", "decode"))


def test_a_speed_is_work_by_the_engines_time(database: Database) -> None:
    assert known(database) is None
    with database.write() as session:
        speeds.measure_lead(session, *KEY, measured(3.0, 10, 90))
        for _ in range(5):
            speeds.measure(session, *KEY, measured(1.0, 20, 380))
        speeds.measure_lead(session, *KEY, measured(5.0, 40, 760))  # of which the answers took two
    throughput = known(database)
    assert throughput is not None
    assert throughput.work_per_second == pytest.approx(400)
    assert throughput.work_per_request == pytest.approx(20)
    assert throughput.bytes_per_request == pytest.approx(100)
    assert throughput.lead_seconds == pytest.approx(3)
    assert throughput.spread == pytest.approx(0, abs=1e-6)


def test_where_segments_have_one_part_their_whole_time_is_the_speed(database: Database) -> None:
    with database.write() as session:
        for _ in range(3):
            speeds.measure_lead(session, *KEY, measured(2.0, 10))
    throughput = known(database)
    assert throughput is not None
    assert (throughput.work_per_second, throughput.lead_seconds) == (pytest.approx(5), 0.0)


def test_a_speed_of_another_configuration_is_not_this_ones(database: Database) -> None:
    with database.write() as session:
        speeds.measure(session, "m", "other", "decode", measured(1.0, 20))
        speeds.measure(session, "m", "config", "prefill", measured(1.0, 30))
    assert known(database) is None


def test_a_speed_follows_a_machine_that_has_become_slower(database: Database) -> None:
    with database.write() as session:
        for speed in (100, 20):
            for _ in range(120):
                speeds.measure(session, *KEY, measured(10.0, 10 * speed))
    throughput = known(database)
    assert throughput is not None
    old = math.exp(-1200 / speeds.MEMORY_SECONDS)
    assert throughput.work_per_second == pytest.approx((20 + 100 * old) / (1 + old), rel=0.02)


def test_the_spread_is_that_of_the_measurements(database: Database) -> None:
    rng = random.Random(3)
    with database.write() as session:
        for _ in range(400):
            speeds.measure(session, *KEY, measured(1.0, round(rng.gauss(1000, 200))))
    throughput = known(database)
    assert throughput is not None
    assert throughput.spread == pytest.approx(0.2, rel=0.15)
    assert throughput.measurements > 200


def test_a_part_right_after_another_segments_does_not_widen_the_spread(database: Database) -> None:
    with database.write() as session:
        for _ in range(50):
            speeds.measure(session, *KEY, measured(1.0, 100))
        speeds.measure(session, *KEY, measured(0.001, 100))
    throughput = known(database)
    assert throughput is not None and throughput.spread < 0.5


def test_segments_that_measure_a_model_first_at_the_same_moment_are_all_counted(database: Database) -> None:
    def one(_: int) -> None:
        with database.write() as session:
            speeds.measure(session, *KEY, measured(0.001, 10))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(24)))
    with database.read() as session:
        assert session.query(Speed).one().requests == pytest.approx(240, rel=0.01)
