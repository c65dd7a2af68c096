"""Limits at which a batch pauses: when they are surely exceeded, however often one looks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import select, update

from store.accounting import stopping
from store.accounting.stopping import ERROR, evidence
from store.database import Database
from store.records import Batch, Event
from tests.support.planned import started

LOOK = 20
"""Answers between two looks."""


def stopped_at(outcomes: np.ndarray, limit: float) -> int | None:
    """Return how many answers there are when the limit stops a batch; None if it never does."""
    found = np.cumsum(outcomes)
    looks = range(LOOK, len(outcomes) + 1, LOOK)
    return next((n for n in looks if evidence(int(found[n - 1]), n, limit) >= -math.log(ERROR)), None)


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


def test_nothing_stops_before_the_first_answer_or_below_the_limit() -> None:
    assert evidence(0, 0, 0.1) == evidence(1, 10, 0.1) == -math.inf


@pytest.mark.parametrize(("name", "column"), [("failed", "failed"), ("length", "cut_off"), ("invalid", "invalid")])
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
