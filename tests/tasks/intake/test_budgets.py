"""A budget warns, refuses new work once it is spent, and pauses what runs if it is to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import redis
from sqlalchemy import select

from batchyard import tariffs
from batchyard.errors import PermissionDeniedError
from store import batches, keys, projects, webhooks
from store.accounting import budgets
from store.accounting.months import Month
from store.deletion import retention
from store.jobs import lifecycle
from store.records import Batch, Budget, DailyUsage, Delivery, Event
from store.webhooks import claim
from tasks.context import AppContext
from tasks.intake import budgets as tasks
from tasks.intake import submission
from tasks.scheduling import caps
from tests.support.jobs import start_job
from tests.support.planned import reload
from tests.support.spending import MILLION, spend
from tests.support.webapps import on_sqlite

NewBatch = Callable[..., Batch]
pytestmark = pytest.mark.usefixtures("frozen_time")  # a month may end just now


@pytest.fixture
def settle(context: AppContext, project: str) -> Callable[..., None]:
    """Sets the project's budget, by default of 10 euros with a warning at 80 %."""

    def set_(euros: int = 10, **changes: Any) -> None:
        terms: dict[str, Any] = {"currency": "EUR", "warn_at": 80, "when_exceeded": "finish"} | changes
        with context.database.write() as session:
            budgets.change(session, keys.terminal(session, "default"), project, amount=Decimal(euros), **terms)

    return set_


def events(context: AppContext) -> list[tuple[str, str]]:
    with context.database.read() as session:
        found = session.scalars(select(Event).where(Event.key_id.is_(None)).order_by(Event.id)).all()
    return [(event.type, event.data["spent"]) for event in found if event.type.startswith("budget.")]


def admit(context: AppContext, project: str) -> None:
    with context.database.write() as session:
        submission.admit(context, session, project, 1)


def test_each_step_is_announced_once_to_webhooks_too(
    context: AppContext, project: str, settle: Callable[..., None]
) -> None:
    with context.database.write() as session:
        types = ["budget.warning", "budget.exceeded"]
        webhooks.create(session, project, name="one", url="https://example.com", event_types=types)
    settle()
    spend(context.database, project, 7)
    tasks.tick(context)
    assert events(context) == []
    spend(context.database, project, 1)
    for _ in range(2):
        tasks.tick(context)
    assert events(context) == [("budget.warning", "8.00")]
    spend(context.database, project, 3)
    for _ in range(2):
        tasks.tick(context)
    assert events(context) == [("budget.warning", "8.00"), ("budget.exceeded", "11.00")]
    with context.database.write() as session:
        assert len(claim(session, at_once=9, per_project=9)) == 2


def test_what_is_spent_refuses_new_work_until_the_budget_is_raised(
    context: AppContext, project: str, settle: Callable[..., None]
) -> None:
    settle()
    spend(context.database, project, 9)
    admit(context, project)
    spend(context.database, project, 1)
    with pytest.raises(
        PermissionDeniedError, match=r"'default' has spent 10\.00 EUR of its budget of 10\.00 EUR"
    ) as no:
        admit(context, project)
    assert no.value.code == "budget_exceeded"
    assert f"from {Month.of().next}-01 (UTC) on" in no.value.message
    settle(11)
    admit(context, project)


def test_only_this_month_this_project_and_the_budgets_currency_count(
    context: AppContext, project: str, settle: Callable[..., None]
) -> None:
    settle()
    with context.database.write() as session:
        other = projects.get_or_create(session, "other").id
    spend(context.database, other, 50)
    spend(context.database, project, 50, at=Month.of().first * 86400 - 1)
    spend(context.database, project, 50, currency="USD")
    spend(context.database, project, None)
    admit(context, project)
    with context.database.read() as session:
        standing = budgets.standing(session, project)
        assert budgets.standing(session, other) is None
    assert standing is not None
    assert (standing.spent, standing.state) == (0, "ok")
    spend(context.database, project, 10)
    with pytest.raises(PermissionDeniedError):
        admit(context, project)
    admit(context, other)


@pytest.mark.parametrize("then", ["finish", "pause"])
def test_what_runs_then_runs_on_or_is_paused_as_the_budget_says(
    context: AppContext, project: str, settle: Callable[..., None], new_batch: NewBatch, then: str
) -> None:
    running, by_hand = new_batch(5), new_batch(5)
    with context.database.write() as session:
        job = start_job(session, project)
        batches.control(session, keys.terminal(session, "default"), by_hand.id, "pause")
    settle(when_exceeded=then)
    spend(context.database, project, 10)
    tasks.tick(context)
    paused = "the project's budget" if then == "pause" else None
    assert reload(context.database, running).paused_by == paused
    with context.database.read() as session:
        assert lifecycle.get(session, project, job.id).paused_by == paused
    settle(20)
    tasks.tick(context)
    assert reload(context.database, running).paused_at is None
    assert reload(context.database, by_hand).paused_by == "a terminal of the server", "whoever paused it resumes it"


def test_a_batch_that_somebody_resumes_by_hand_is_not_paused_again(
    context: AppContext, project: str, settle: Callable[..., None], new_batch: NewBatch
) -> None:
    running = new_batch(5)
    settle(when_exceeded="pause")
    spend(context.database, project, 10)
    tasks.tick(context)
    with context.database.write() as session:
        batches.control(session, keys.terminal(session, "default"), running.id, "resume")
    tasks.tick(context)
    assert reload(context.database, running).paused_at is None


def test_a_new_month_begins_with_nothing_spent(
    context: AppContext, project: str, settle: Callable[..., None], new_batch: NewBatch
) -> None:
    running = new_batch(5)
    settle(when_exceeded="pause")
    spend(context.database, project, 10)
    tasks.tick(context)
    with context.database.write() as session:  # as if that had been a month ago
        session.query(Budget).update({"notice": f"{Month.of().previous} exceeded"})
        session.query(DailyUsage).update({"day": Month.of().previous.first})
        assert budgets.noticed(session, project) == "ok"
    tasks.tick(context)
    assert reload(context.database, running).paused_at is None
    admit(context, project)


def test_a_removed_budget_limits_nothing_and_lets_go_on_what_it_had_paused(
    context: AppContext, project: str, settle: Callable[..., None], new_batch: NewBatch
) -> None:
    running = new_batch(5)
    spend(context.database, project, 10)
    settle(when_exceeded="pause")
    assert reload(context.database, running).paused_at is not None, "it is spent already when it is set"
    with context.database.write() as session:
        budgets.remove(session, keys.terminal(session, "default"), project)
    assert reload(context.database, running).paused_at is None
    admit(context, project)
    with context.database.read() as session:
        acts = [
            event.type for event in session.scalars(select(Event).where(Event.key_id.is_not(None)).order_by(Event.id))
        ]
    assert acts == ["budget.changed", "budget.removed"]


def test_an_old_event_of_a_budget_goes_once_its_deliveries_are_gone(
    context: AppContext, project: str, settle: Callable[..., None]
) -> None:
    with context.database.write() as session:
        webhooks.create(session, project, name="one", url="https://example.com", event_types=["budget.exceeded"])
    settle()
    spend(context.database, project, 10)
    tasks.tick(context)
    later = time.time() + 3600

    def purge() -> int:
        with context.database.write() as session:
            return sum(
                retention.purge(session, old, retention.find(session, old)) for old in retention.others(later, later)
            )

    assert purge() >= 1, "who had set it"
    with context.database.write() as session:
        assert session.query(Event).count() == 1
        session.query(Delivery).delete()
    purge()
    with context.database.read() as session:
        assert session.query(Event).count() == 0


@on_sqlite
def test_budgets_cost_nothing_where_there_are_none(context: AppContext, project: str) -> None:
    spend(context.database, project, 10)
    tasks.tick(context)
    admit(context, project)
    assert events(context) == []


def test_a_keys_cap_pauses_its_work_alone_and_counts_what_redis_knows_first(
    context: AppContext, broker: str, project: str, new_batch: NewBatch
) -> None:
    context = replace(context, redis=redis.Redis.from_url(broker, decode_responses=True))
    context.redis.flushall()
    mine, stage, other = new_batch(5), new_batch(5), new_batch(5)
    with context.database.write() as session:
        key = keys.create(session, "default", label="racer")
        standing = budgets.cap(session, keys.terminal(session, "default"), key.id, {"max_tokens": 2 * MILLION})
        job = start_job(session, project)
        job.created_by = key.id
    with context.database.write() as session:
        session.get_one(Batch, mine.id).created_by = key.id
        session.get_one(Batch, stage.id).job_id = job.id
    assert standing is not None
    spend(context.database, project, None, key_id=key.id)
    tasks.tick(context)
    assert [kind for kind, _ in events(context)] == []
    # A live request that the database does not know yet, then the same one in the database: it counts once.
    caps.add(context, standing, None, tariffs.NOTHING._replace(input_tokens=MILLION))
    tasks.tick(context)
    assert [kind for kind, _ in events(context)] == ["budget.warning", "budget.exceeded"]
    spend(context.database, project, None, key_id=key.id, batch_id="live:" + key.id)
    with context.database.read() as session:
        known = budgets.standing(session, project, key.id)
        with pytest.raises(
            PermissionDeniedError, match=r"Key 'racer' has used 2,000,000 of its cap of 2,000,000 tokens"
        ):
            tasks.check(context, session, project, key.id)
        tasks.check(context, session, project)
        assert known is not None and caps.current(context, known).tokens == 2 * MILLION
    paused = [reload(context.database, batch).paused_by for batch in (mine, stage, other)]
    assert paused == ["its key's cap", "its key's cap", None]
    context.redis.flushall()
    with context.database.read() as session, pytest.raises(PermissionDeniedError):
        tasks.check(context, session, project, key.id)
    with context.database.write() as session:
        assert budgets.cap(session, keys.terminal(session, "default"), key.id, {"max_tokens": None}) is None
    assert reload(context.database, mine).paused_by is None
