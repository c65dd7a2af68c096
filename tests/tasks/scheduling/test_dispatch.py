"""Dispatch starts what the policy chooses from the records, and never more than the limits allow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from batchyard.models import ModelSpec
from batchyard.statuses import BACKGROUND
from store import projects, segments, speeds
from store.database import Database
from store.records import Batch, Segment
from store.segments import PendingSegment
from store.speeds import Measurement
from tasks.context import AppContext
from tasks.scheduling import dispatch, gpu_sharing
from tasks.scheduling.policy import Limits, choose
from tests.support.messages import SentMessages


def test_what_is_due_first_is_first_and_a_batch_runs_from_its_start(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    late, soon = new_batch(1, 1, window="24h"), new_batch(1, 1, window="1h")
    with database.read() as session:
        order = sorted(segments.waiting(session, 10))
    assert [(entry.batch_id, entry.number) for entry in order] == [
        (soon.id, 0),
        (soon.id, 1),
        (late.id, 0),
        (late.id, 1),
    ]


def test_a_model_with_many_waiting_segments_does_not_hide_another(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    new_batch(*[1] * 30, window="1h", model="busy")
    new_batch(1, window="24h", model="idle")
    with database.read() as session:
        assert {entry.model for entry in segments.waiting(session, 2)} == {"busy", "idle"}


def test_a_segment_that_failed_waits_its_delay(database: Database, new_batch: Callable[..., Batch]) -> None:
    new_batch(1)
    with database.write() as session:
        session.execute(update(Segment).values(not_before=time.time() + 60))
        assert segments.waiting(session, 10) == []


@pytest.fixture
def two_models(context: AppContext) -> AppContext:
    """A deployment of two models, each full with 512 requests."""
    return replace(context, models={name: ModelSpec(name=name, engine="echo") for name in ("echo", "other")})


def test_an_idle_model_gets_its_segment_while_another_has_a_hundred_waiting(
    two_models: AppContext, new_batch: Callable[..., Batch], sent: SentMessages
) -> None:
    big = new_batch(*[2000] * 100, window="1h")
    dispatch.run(two_models)
    dispatch.run(two_models)
    assert sent.dispatched() == [big.id]
    idle = new_batch(1, window="24h", model="other")
    dispatch.run(two_models)
    assert sent.dispatched() == [big.id, idle.id]


def test_a_segment_that_drains_makes_way_for_the_next_and_small_ones_share_a_slot(
    two_models: AppContext, database: Database, new_batch: Callable[..., Batch], sent: SentMessages
) -> None:
    big = new_batch(2000, 2000, window="1h")
    small = [new_batch(50, window="24h") for _ in range(5)]
    for answered, number in ((0, 1), (1488, 1), (1489, 2)):
        with database.write() as session:
            session.execute(update(Segment).where(Segment.state == "dispatched").values(answered=answered))
        dispatch.run(two_models)
        assert sent.dispatched() == [big.id] * number
    with database.write() as session:
        session.execute(update(Segment).where(Segment.state == "dispatched").values(answered=1999))
    dispatch.run(two_models)
    assert sent.dispatched()[2:] == [batch.id for batch in small]


def test_a_fast_models_segments_drain_for_as_long_as_the_next_needs_to_begin(
    context: AppContext, database: Database
) -> None:
    with database.write() as session:
        assert dispatch.limits(context, session).fills == {"echo": 512}
        measure(session, context, requests=60_000)
        assert dispatch.limits(context, session).fills == {"echo": pytest.approx(3000)}


def test_a_very_fast_models_segments_begin_one_after_the_other_not_all_at_once(
    context: AppContext, database: Database
) -> None:
    with database.write() as session:
        measure(session, context, requests=600_000)
        assert dispatch.limits(context, session).fills == {"echo": dispatch.DRAIN_REQUESTS}


def measure(session: Session, context: AppContext, requests: int) -> None:
    """Note that the model answered so many requests in a minute."""
    measurement = Measurement(60.0, requests, 100.0 * requests, tokens=0, squares=60_000.0, in_flight=256.0)
    speeds.measure(speeds.locked(session, "echo", context.models["echo"].config_sha256, "decode"), measurement)


def test_a_job_has_its_slot_to_the_end_and_as_many_as_its_model_may(context: AppContext, database: Database) -> None:
    spec = ModelSpec(name="job", engine="vllm-job", source="here", max_segments=3)
    with database.read() as session:
        limits = dispatch.limits(replace(context, models={"job": spec}), session)
    running = [PendingSegment(False, 9, "batch", number, number, "job", "project", 1) for number in range(9)]
    assert len(choose(running, [], replace(limits, total=8))) == 3


@pytest.mark.races
def test_many_dispatchers_at_once_never_pass_the_limit(database: Database, new_batch: Callable[..., Batch]) -> None:
    new_batch(*[1] * 20)

    def start(_: int) -> None:
        with database.write(serial=True) as session:
            active = segments.active(session)
            for entry in choose(segments.waiting(session, 3), active, Limits(3, {"echo": 3}, engines={"echo": 3})):
                segments.dispatch(session, entry.segment_id, 60)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start, range(24)))
    with database.read() as session:
        assert len(segments.active(session)) == 3


def test_a_tier_puts_a_batch_before_others_whose_windows_end_sooner(
    database: Database, new_batch: Callable[..., Batch]
) -> None:
    soon, tiered = new_batch(1, window="12h"), new_batch(1, window="24h", due_after=3600)
    with database.read() as session:
        assert [entry.batch_id for entry in sorted(segments.waiting(session, 10))] == [tiered.id, soon.id]


def test_a_projects_own_limit_is_kept(database: Database, new_batch: Callable[..., Batch], project: str) -> None:
    new_batch(*[1] * 9)
    with database.write() as session:
        projects.update(session, project, tier=None, max_segments=2)
    with database.read() as session:
        limits = Limits(8, {"echo": 8}, projects.max_segments(session), engines={"echo": 8})
        assert len(choose(segments.waiting(session, 8), [], limits)) == 2


def test_service_is_forgotten_with_time(database: Database, project: str) -> None:
    with database.write() as session:
        speeds.add_usage(session, project, 60.0)
        now = time.time()
        assert speeds.recent_usage(session, [project], now)[project] > 59
        later = speeds.recent_usage(session, [project], now + speeds.USAGE_SECONDS)[project]
    assert 0.36 < later / 60 < 0.38


def test_a_model_that_holds_what_another_waits_for_begins_nothing_that_is_due_later() -> None:
    now = time.time()
    wants = [gpu_sharing.EngineDemand(1000, ["big"], now + 60)]

    def entry(model: str, due_at: float) -> PendingSegment:
        return PendingSegment(False, due_at, "batch", 0, 0, model, "project")

    assert gpu_sharing.blocked(wants, [entry("big", 2000), entry("big", 3000), entry("other", 3000)]) == {"big"}
    assert gpu_sharing.blocked(wants, [entry("big", 2000), entry("big", 500)]) == set()
    assert gpu_sharing.blocked([], [entry("big", 2000)]) == set()


def test_a_want_of_room_is_forgotten_once_it_is_met(connected: AppContext) -> None:
    gpu_sharing.record_demand(connected, "small", 1000, ["big"])
    assert [(want.due_at, want.holders) for want in gpu_sharing.demands(connected)] == [(1000, ["big"])]
    gpu_sharing.clear_demand(connected, "small")
    assert gpu_sharing.demands(connected) == []


def test_the_background_starts_last_and_makes_way_for_what_fills_its_engine(
    two_models: AppContext, new_batch: Callable[..., Batch], sent: SentMessages
) -> None:
    spare = new_batch(2000, 2000, priority=BACKGROUND)
    dispatch.run(two_models)
    assert sent.dispatched() == [spare.id], "nothing else is there, and its first segment fills the engine"
    new_batch(2000, model="other")
    assert not dispatch.makes_way(two_models, "echo"), "another model's engine is no other work"
    dispatch.run(two_models)
    small = new_batch(10)
    dispatch.run(two_models)
    assert sent.dispatched()[-1] == small.id
    assert not dispatch.makes_way(two_models, "echo"), "it fills a hundredth of the engine"
    large = new_batch(2000)
    dispatch.run(two_models)
    assert sent.dispatched()[-1] == large.id, "the background stands in nobody's way"
    assert dispatch.makes_way(two_models, "echo")


def test_the_background_makes_way_for_a_model_that_waits_for_its_gpus(
    connected: AppContext, new_batch: Callable[..., Batch], sent: SentMessages
) -> None:
    new_batch(2000, priority=BACKGROUND)
    dispatch.run(connected)
    assert not dispatch.makes_way(connected, "echo")
    gpu_sharing.record_demand(connected, "other", math.inf, ["echo"])
    assert not dispatch.makes_way(connected, "echo"), "the other's work is of the background, too"
    gpu_sharing.record_demand(connected, "other", int(time.time()) + 3600, ["echo"])
    assert dispatch.makes_way(connected, "echo")
