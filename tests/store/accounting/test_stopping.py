"""Limits at which a batch pauses: when they are surely exceeded, however often one looks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import select, update

from store.accounting import stopping
from store.accounting.stopping import CHUNKS, ERROR, evidence, exceeded
from store.database import Database
from store.records import Batch, Event
from tests.support.planned import started

LOOK = 20
"""Answers between two looks."""


def stopped_at(outcomes: np.ndarray, limit: float) -> int | None:
    """Return how many answers there are when the limit stops a batch; None if it never does."""
    found, looks = np.cumsum(outcomes), np.arange(LOOK, len(outcomes) + 1, LOOK)
    for some in np.split(looks, range(50, len(looks), 50)):
        if (over := evidence(found[some - 1], some, limit) >= -math.log(ERROR)).any():
            return int(some[over.argmax()])
    return None


@pytest.mark.long
@pytest.mark.parametrize("limit", [0.02, 0.2, 0.5])
def test_a_batch_at_its_limit_is_stopped_in_one_of_two_hundred_at_most(limit: float) -> None:
    chance = np.random.default_rng(1)
    stopped = [stopped_at(chance.random(3000) < limit, limit) for _ in range(400)]
    assert sum(one is not None for one in stopped) <= 6


@pytest.mark.parametrize(
    ("limit", "share", "most"), [(0.2, 0.3, 700), (0.1, 0.5, 60), (0.05, 0.15, 300), (0.02, 1, 20)]
)
def test_a_batch_above_its_limit_is_stopped_soon(limit: float, share: float, most: int) -> None:
    chance = np.random.default_rng(2)
    stopped = [stopped_at(chance.random(10_000) < share, limit) for _ in range(50)]
    assert None not in stopped
    assert np.quantile([one or 0 for one in stopped], 0.9) <= most


def run(wrong: np.ndarray, limit: float, in_flight: int = 64) -> int | None:
    """Return how many requests a batch has answered when its limit of failures pauses it; None if it never does."""
    chunks = np.add.reduceat(wrong, np.arange(0, len(wrong), LOOK)).astype(float)
    last = np.column_stack((chunks, LOOK - chunks))
    for number in range(1, len(last)):
        since = last[max(0, number - CHUNKS) : number]
        found = last[:number, 0].sum()
        if exceeded(limit, found, number * LOOK, in_flight, (number, since)) is not None:
            return number * LOOK
    return None


FAULTS: dict[str, tuple[float, Callable[[np.random.Generator, np.ndarray], np.ndarray]]] = {
    "wrong template": (0.1, lambda chance, at: chance.random(len(at)) < 0.9),
    "wrong model": (0.3, lambda chance, at: chance.random(len(at)) < 0.7),
    "bad schema": (0.1, lambda chance, at: np.ones(len(at), bool)),
    "server breaks after 30 % of the rows": (0.2, lambda chance, at: (at >= 0.3) & (chance.random(len(at)) < 0.95)),
    "server fails 30 % of the rows": (0.1, lambda chance, at: chance.random(len(at)) < 0.3),
    "bad column in 15 % of the rows": (0.05, lambda chance, at: chance.random(len(at)) < 0.15),
}


@pytest.mark.long
@pytest.mark.parametrize("seeds", [3, pytest.param(10, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_stops_a_batch_within_three_percent_of_its_requests(fault: str, seeds: int) -> None:
    limit, wrong = FAULTS[fault]
    at = np.arange(20_000) / 20_000
    for seed in range(seeds):
        outcomes = wrong(np.random.default_rng(seed), at)
        stopped = run(outcomes, limit)
        assert stopped is not None and stopped - int(np.argmax(at >= 0.3)) * ("after" in fault) <= 600, stopped


@pytest.mark.long
@pytest.mark.parametrize("batches", [20, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_of_sound_batches_one_in_a_hundred_is_stopped_at_most(batches: int) -> None:
    wrongly = 0
    for seed in range(batches):
        chance = np.random.default_rng(seed)
        limit = float(chance.choice([0.02, 0.1, 0.2, 0.5]))
        outcomes = chance.random(2_000) < limit * chance.choice([0.5, 0.9, 1.0])
        wrongly += run(outcomes, limit, in_flight=0) is not None
    assert wrongly <= batches / 100


def test_nothing_stops_before_the_first_answer_or_below_the_limit() -> None:
    assert evidence(0, 0, 0.1) == evidence(1, 10, 0.1) == -math.inf


@pytest.mark.parametrize(("name", "column"), [("failed", "failed"), ("length", "cut_off"), ("looped", "looped")])
def test_a_limit_pauses_its_batch_once_with_an_event_and_others_stay(
    database: Database, new_batch: Callable[..., Batch], name: str, column: str
) -> None:
    batch = new_batch(1000)
    counts = {"completed": 300, "failed": 0} | {column: 150}
    with database.write() as session:
        limits = {name: 0.2, "tokens": 10**9}
        session.execute(update(Batch).where(Batch.id == batch.id).values(stop_when=limits, **counts))
        stopping.check(session, batch.id)
        stopping.check(session, batch.id)
    with database.read() as session:
        batch = session.get_one(Batch, batch.id)
        events = session.scalars(select(Event).where(Event.batch_id == batch.id, Event.type == "batch.stopped")).all()
    assert (batch.paused_by, batch.stop_when) == (f"its limit of {name}", {"tokens": 10**9})
    assert [event.data["limit"] for event in events] == [{name: 0.2}]


def test_requests_that_validation_has_refused_count_for_no_limit_of_shares(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    batch = new_batch(100_000)
    with database.write() as session:
        values = {"stop_when": {"failed": 0.01}, "completed": 500, "failed": 3000, "refused": 3000}
        session.execute(update(Batch).where(Batch.id == batch.id).values(**values))
        stopping.check(session, batch.id)
    with database.read() as session:
        assert session.get_one(Batch, batch.id).paused_at is None


def test_what_the_engines_still_have_counts_as_good_since_failures_come_first(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    batch = new_batch(1000)
    started(database, batch)
    with database.write() as session:
        values = {"stop_when": {"failed": 0.2}, "completed": 0, "failed": 5}
        session.execute(update(Batch).where(Batch.id == batch.id).values(**values))
        stopping.check(session, batch.id)
    with database.read() as session:
        assert session.get_one(Batch, batch.id).paused_at is None


@pytest.mark.parametrize("is_open", [True, False])
def test_an_open_batch_is_stopped_though_all_its_requests_so_far_are_answered(
    database: Database, new_batch: Callable[..., Batch], is_open: bool
) -> None:
    batch = new_batch(1000)
    with database.write() as session:
        values = {"stop_when": {"tokens": 5}, "completed": 1000, "input_tokens": 9, "open": is_open}
        session.execute(update(Batch).where(Batch.id == batch.id).values(**values))
        stopping.check(session, batch.id)
    with database.read() as session:
        paused_by = session.get_one(Batch, batch.id).paused_by
    assert paused_by == ("its limit of tokens" if is_open else None)


def test_a_batch_that_ends_is_not_stopped(database: Database, new_batch: Callable[..., Batch]) -> None:
    batch = new_batch(1000)
    with database.write() as session:
        values = {"stop_when": {"tokens": 5}, "completed": 10, "input_tokens": 9, "status": "cancelling"}
        session.execute(update(Batch).where(Batch.id == batch.id).values(**values))
        stopping.check(session, batch.id)
    with database.read() as session:
        assert session.get_one(Batch, batch.id).paused_at is None
