"""Speeds follow what is measured, and a model without measurements has none."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchyard.models import ModelSpec
from store import speeds
from store.database import Database
from store.records import Speed
from store.speeds import Expected, Measurement, Throughput

SPEC = ModelSpec(name="m", engine="echo", max_in_flight=100)
KEY = ("m", SPEC.config_sha256, "decode")


def measured(seconds: float, requests: int, tokens: int = 0, in_flight: float = 10) -> Measurement:
    work = 1 + tokens / requests
    return Measurement(
        seconds=seconds,
        requests=requests,
        bytes=100.0 * requests,
        tokens=tokens,
        squares=requests * work**2,
        in_flight=in_flight,
    )


def known(database: Database) -> Throughput | None:
    with database.read() as session:
        return speeds.throughputs(session, {"m": SPEC}).get(("m", "decode"))


def test_a_speed_is_work_by_the_engines_time(database: Database) -> None:
    assert known(database) is None
    with database.write() as session:
        speeds.measure_first(speeds.locked(session, *KEY), measured(3.0, 10, 90))
        for _ in range(5):
            speeds.measure(speeds.locked(session, *KEY), measured(1.0, 20, 380))
        speeds.measure_first(speeds.locked(session, *KEY), measured(5.0, 40, 760))
    throughput = known(database)
    assert throughput is not None
    assert throughput.work_per_second == pytest.approx(400)
    assert throughput.work_per_request == pytest.approx(20)
    assert throughput.bytes_per_request == pytest.approx(100)
    assert throughput.spread == pytest.approx(0, abs=1e-6)
    assert throughput.request_spread == pytest.approx(0, abs=1e-6)
    assert throughput.in_flight == pytest.approx(10)


def test_first_answers_are_the_speed_until_there_is_a_better_one(database: Database) -> None:
    with database.write() as session:
        for _ in range(3):
            speeds.measure_first(speeds.locked(session, *KEY), measured(2.0, 10))
    throughput = known(database)
    assert throughput is not None
    assert (throughput.work_per_second, throughput.measurements) == (pytest.approx(5), 0.0)


def test_a_speed_says_how_little_it_knows_of_more_requests_at_once(database: Database) -> None:
    with database.write() as session:
        speeds.measure_first(speeds.locked(session, *KEY), measured(0.2, 8, in_flight=8))
    throughput = known(database)
    assert throughput is not None
    assert throughput.speed(8) == (pytest.approx(40), pytest.approx(0))
    for requests in (100, 1200):  # at most 100 are in flight
        speed, doubt = throughput.speed(requests)
        assert speed / math.exp(doubt) == pytest.approx(40), "as fast as with 8"
        assert speed * math.exp(doubt) == pytest.approx(500), "as many times as fast as there are more requests"


def test_what_was_measured_with_few_requests_at_once_gives_way_to_what_is_measured_with_many(
    database: Database,
) -> None:
    with database.write() as session:
        for _ in range(600):
            speeds.measure(speeds.locked(session, *KEY), measured(1.0, 40, in_flight=8))
        for _ in range(6):
            speeds.measure(speeds.locked(session, *KEY), measured(1.0, 500, in_flight=100))
    throughput = known(database)
    assert throughput is not None
    speed, doubt = throughput.speed(1200)
    assert speed == pytest.approx(500, rel=0.15)
    assert doubt < 0.15


def test_a_few_answers_beside_many_others_displace_nothing(database: Database) -> None:
    with database.write() as session:
        for _ in range(60):
            speeds.measure(speeds.locked(session, *KEY), measured(1.0, 40, in_flight=8))
        speeds.measure(speeds.locked(session, *KEY), measured(0.1, 1, in_flight=100))
    throughput = known(database)
    assert throughput is not None
    assert throughput.requests > 2000
    assert throughput.in_flight == pytest.approx(8, rel=0.1)


def test_the_spread_of_single_requests_is_measured(database: Database) -> None:
    with database.write() as session:
        for tokens in (9, 29):  # ten requests of 10 and ten of 30
            speeds.measure(speeds.locked(session, *KEY), measured(1.0, 10, 10 * tokens))
    throughput = known(database)
    assert throughput is not None and throughput.request_spread == pytest.approx(0.5, rel=0.01)


def test_a_duration_has_a_fixed_part_and_one_that_grows(database: Database) -> None:
    def expected(units: float) -> Expected | None:
        with database.read() as session:
            return speeds.expected_duration(session, "finish", "", "", units)

    assert expected(0) is None
    with database.write() as session:
        speeds.measure_duration(session, "finish", "", "", 2.0, 1000)
    assert expected(1000) == Expected(2.0, pytest.approx(math.sqrt(2))), "one time says little"
    with database.write() as session:
        for units in (100, 10_000, 50_000) * 10:
            speeds.measure_duration(session, "finish", "", "", 1.0 + units / 1000, units)
    long = expected(100_000)
    assert long is not None and long.seconds == pytest.approx(101, rel=0.03)
    short = expected(0)
    assert short is not None and short.seconds == pytest.approx(1, abs=0.2)


def test_a_speed_of_another_configuration_is_not_this_ones(database: Database) -> None:
    with database.write() as session:
        speeds.measure(speeds.locked(session, "m", "other", "decode"), measured(1.0, 20))
        speeds.measure(speeds.locked(session, "m", SPEC.config_sha256, "prefill"), measured(1.0, 30))
    assert known(database) is None


def test_a_speed_follows_a_machine_that_has_become_slower(database: Database) -> None:
    with database.write() as session:
        for speed in (100, 20):
            for _ in range(120):
                speeds.measure(speeds.locked(session, *KEY), measured(10.0, 10 * speed))
    throughput = known(database)
    assert throughput is not None
    old = math.exp(-1200 / speeds.MEMORY_SECONDS)
    assert throughput.work_per_second == pytest.approx((20 + 100 * old) / (1 + old), rel=0.02)


def test_the_spread_is_that_of_the_measurements(database: Database) -> None:
    rng = random.Random(3)
    with database.write() as session:
        for _ in range(400):
            speeds.measure(speeds.locked(session, *KEY), measured(1.0, round(rng.gauss(1000, 200))))
    throughput = known(database)
    assert throughput is not None
    assert throughput.spread == pytest.approx(0.2, rel=0.15)
    assert throughput.measurements > 200


def test_a_part_right_after_another_segments_does_not_widen_the_spread(database: Database) -> None:
    with database.write() as session:
        for _ in range(50):
            speeds.measure(speeds.locked(session, *KEY), measured(1.0, 100))
        speeds.measure(speeds.locked(session, *KEY), measured(0.001, 100))
    throughput = known(database)
    assert throughput is not None and throughput.spread < 0.5


def test_segments_that_measure_a_model_first_at_the_same_moment_are_all_counted(database: Database) -> None:
    def one(_: int) -> None:
        with database.write() as session:
            speeds.measure(speeds.locked(session, *KEY), measured(0.001, 10))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(24)))
    with database.read() as session:
        assert session.query(Speed).one().requests == pytest.approx(240, rel=0.01)
