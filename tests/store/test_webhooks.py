"""Events on their way to webhooks: none is lost, and no attempt is made twice at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError, NotFoundError, RequestError
from store import batches, events, keys, webhooks
from store.database import Database
from store.records import Batch, Delivery, Event, Project, Webhook, now

NewBatch = Callable[..., Batch]
URL = "https://receiver.example/hook"


def a_webhook(database: Database, project: str, *types: str) -> Webhook:
    """Create a webhook that receives these event types, or all."""
    with database.write() as session:
        return webhooks.create(session, project, name="ours", url=URL, event_types=list(types or events.TYPES))


def happen(database: Database, batch: Batch, type_: str = "batch.late") -> Event:
    with database.write() as session:
        return events.record(session, batch, type_)


def deliveries(database: Database) -> Sequence[Delivery]:
    with database.read() as session:
        return session.scalars(select(Delivery).order_by(Delivery.id)).all()


def claim(database: Database, at_once: int = 16, per_project: int = 16) -> list[tuple[str, int]]:
    with database.write(serial=True) as session:
        return webhooks.claim(session, at_once=at_once, per_project=per_project)


def begin(database: Database, claimed: tuple[str, int]) -> webhooks.DeliveryAttempt | None:
    with database.write() as session:
        return webhooks.begin(session, *claimed)


def settle(database: Database, attempt: webhooks.DeliveryAttempt | None, **outcome: Any) -> Delivery:
    assert attempt is not None
    with database.write() as session:
        webhooks.record_outcome(session, attempt, **outcome)
    with database.read() as session:
        return session.get_one(Delivery, attempt.delivery.id)


def let_time_pass(database: Database) -> None:
    """Make every wait and every claim expire."""
    with database.write() as session:
        session.execute(update(Delivery).values(next_attempt_at=time.time() - 1))


def test_an_event_has_a_delivery_for_each_webhook_that_takes_it(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    every, ends = a_webhook(database, project), a_webhook(database, project, "batch.completed", "batch.late")
    a_webhook(database, project, "batch.failed")
    off = a_webhook(database, project)
    with database.write() as session:
        webhooks.change(session, project, off.id, {"enabled": False})
        theirs = keys.create(session, "other").project
        other = session.query(Project).filter_by(name=theirs).one().id
    a_webhook(database, other)
    event = happen(database, new_batch())
    assert {(delivery.webhook_id, delivery.event_id) for delivery in deliveries(database)} == {
        (every.id, event.id),
        (ends.id, event.id),
    }


def test_a_batch_that_ends_and_its_deliveries_are_one_transaction(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    a_webhook(database, project)
    batch = new_batch()
    with pytest.raises(ZeroDivisionError), database.write() as session:
        batches.reject(session, batch.id, [])
        raise ZeroDivisionError
    assert deliveries(database) == []
    with database.write() as session:
        batches.reject(session, batch.id, [])
    (delivery,) = deliveries(database)
    with database.read() as session:
        assert session.get_one(Event, delivery.event_id).type == "batch.failed"


def test_two_takers_never_take_the_same_delivery(database: Database, project: str, new_batch: NewBatch) -> None:
    a_webhook(database, project)
    batch = new_batch()
    for _ in range(20):
        happen(database, batch)

    def claim_all(_: int) -> list[tuple[str, int]]:
        return claim(database, at_once=100, per_project=100)

    with ThreadPoolExecutor(6) as pool:
        claimed = [entry for claims in pool.map(claim_all, range(6)) for entry in claims]
    assert sorted(claimed) == [(delivery.id, 0) for delivery in deliveries(database)]


def test_of_two_messages_for_one_attempt_one_begins_it(database: Database, project: str, new_batch: NewBatch) -> None:
    a_webhook(database, project)
    happen(database, new_batch())
    (claimed,) = claim(database)
    with ThreadPoolExecutor(4) as pool:
        attempts = [
            attempt for attempt in pool.map(lambda _: begin(database, claimed), range(4)) if attempt is not None
        ]
    assert [attempt.delivery.attempts for attempt in attempts] == [1]


def test_a_lost_message_and_a_dead_sender_are_found_again_and_the_dead_one_records_nothing(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    a_webhook(database, project)
    happen(database, new_batch())
    (lost,) = claim(database)
    assert claim(database) == []
    let_time_pass(database)
    assert claim(database) == [lost]
    dead = begin(database, lost)
    assert claim(database) == []
    let_time_pass(database)
    (again,) = claim(database)
    second = begin(database, again)
    assert second is not None
    assert second.delivery.attempts == 2
    assert settle(database, dead, status_code=200).state == "sending"
    assert settle(database, second, status_code=200).state == "delivered"
    let_time_pass(database)
    assert claim(database) == []


@pytest.mark.usefixtures("frozen_time")
def test_a_failed_attempt_waits_and_the_last_one_is_final(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    a_webhook(database, project)
    happen(database, new_batch())
    waiting = settle(database, begin(database, claim(database)[0]), status_code=503, error="busy", wait=60.0)
    assert (waiting.state, waiting.status_code, waiting.error, waiting.attempts) == ("pending", 503, "busy", 1)
    assert waiting.next_attempt_at == pytest.approx(time.time() + 60, abs=5)
    assert claim(database) == []
    let_time_pass(database)
    failed = settle(database, begin(database, claim(database)[0]), status_code=None, error="no answer")
    assert (failed.state, failed.status_code, failed.attempts, failed.delivered_at) == ("failed", None, 2, None)
    let_time_pass(database)
    assert claim(database) == []


def test_no_project_has_more_on_its_way_than_its_share_and_new_events_go_before_old_failures(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    a_webhook(database, project)
    batch = new_batch()
    for _ in range(3):
        happen(database, batch)
    for claimed in claim(database):
        settle(database, begin(database, claimed), status_code=500, error="broken", wait=0.0)
    newest = happen(database, batch)
    with database.write() as session:
        keys.create(session, "other")
        other = session.query(Project).filter_by(name="other").one().id
        webhooks.create(session, other, name="theirs", url=URL, event_types=["batch.late"])
        theirs = events.record(session, Batch(id=batch.id, project_id=other), "batch.late")
    let_time_pass(database)
    claims = dict(claim(database, at_once=4, per_project=2))
    by_id = {delivery.id: delivery for delivery in deliveries(database)}
    assert {newest.id, theirs.id} < {by_id[delivery_id].event_id for delivery_id in claims}
    assert sorted(claims.values()) == [0, 0, 1]
    assert claim(database, at_once=4, per_project=2) == []
    assert len(claim(database, at_once=4, per_project=4)) == 1
    assert claim(database, at_once=4, per_project=9) == []


def test_a_disabled_webhooks_deliveries_wait_until_it_is_enabled(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    webhook = a_webhook(database, project)
    happen(database, new_batch())
    with database.write() as session:
        webhooks.disable(session, webhook.id)
        assert not webhooks.any_due(session, time.time())
    assert claim(database) == []
    with database.write() as session:
        webhooks.change(session, project, webhook.id, {"enabled": True})
        assert webhooks.any_due(session, time.time())
    assert len(claim(database)) == 1


def test_a_delivery_is_sent_again_whatever_became_of_it_unless_it_is_being_sent(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    webhook = a_webhook(database, project)
    happen(database, new_batch())
    (claimed,) = claim(database)

    def redeliver() -> str:
        with database.write() as session:
            return webhooks.redeliver(session, webhook, claimed[0])[0].state

    assert redeliver() == "sending"
    settle(database, begin(database, claimed), status_code=200)
    assert redeliver() == "pending"
    again = begin(database, claim(database)[0])
    assert again is not None
    assert again.delivery.attempts == 2
    settle(database, again, status_code=None, error="no answer")
    assert redeliver() == "pending"
    with database.write() as session:
        webhook = webhooks.change(session, project, webhook.id, {"enabled": False})
    with pytest.raises(ConflictError, match="enable it"):
        redeliver()


def test_a_webhook_is_deleted_with_its_deliveries_while_one_is_being_sent(
    database: Database, project: str, new_batch: NewBatch
) -> None:
    webhook = a_webhook(database, project)
    batch = new_batch()
    event = happen(database, batch)
    attempt = begin(database, claim(database)[0])
    with database.write(serial=True) as session:
        webhooks.remove(session, project, webhook.id)
    assert attempt is not None
    with database.write() as session:
        webhooks.record_outcome(session, attempt, status_code=200)
        assert webhooks.begin(session, attempt.delivery.id, 1) is None
    assert deliveries(database) == []
    with database.read() as session:
        assert [recorded.id for recorded in events.page(session, batch, after=None, limit=9)[0]] == [event.id]
        with pytest.raises(NotFoundError):
            webhooks.get(session, project, webhook.id)


def test_events_are_recorded_while_webhooks_come_and_go(database: Database, project: str, new_batch: NewBatch) -> None:
    batch = new_batch()

    def come_and_go(_: int) -> None:
        for _ in range(5):
            webhook = a_webhook(database, project)
            happen(database, batch)
            with database.write(serial=True) as session:
                webhooks.remove(session, project, webhook.id)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(4)))
    assert deliveries(database) == []
    with database.read() as session:
        assert len(events.page(session, batch, after=None, limit=99)[0]) == 20


def test_a_project_has_so_many_webhooks_and_not_one_more(database: Database, project: str) -> None:
    def make(_: int) -> bool:
        try:
            a_webhook(database, project)
            return True
        except RequestError as error:
            assert error.code == "too_many_webhook_endpoints"
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(make, range(24))) == webhooks.MAX_WEBHOOKS


def test_a_new_secret_signs_alone_or_for_a_day_together_with_the_one_before(
    database: Database, project: str, new_batch: NewBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = a_webhook(database, project)
    happen(database, new_batch())

    def rotate(*, keep_old: bool) -> Webhook:
        with database.write() as session:
            return webhooks.rotate_secret(session, project, webhook.id, keep_old=keep_old)

    first = rotate(keep_old=True)
    assert webhooks.secrets_of(first) == [first.secret, webhook.secret]
    second = rotate(keep_old=True)
    assert webhooks.secrets_of(second) == [second.secret, first.secret]
    attempt = begin(database, claim(database)[0])
    assert attempt is not None
    assert webhooks.secrets_of(attempt.webhook) == [second.secret, first.secret]
    assert second.secret not in repr(attempt)
    with monkeypatch.context() as patched:
        patched.setattr(webhooks, "now", lambda: now() + 24 * 3600)
        assert webhooks.secrets_of(second) == [second.secret]
    third = rotate(keep_old=False)
    assert webhooks.secrets_of(third) == [third.secret]
    assert len({webhook.secret, first.secret, second.secret, third.secret}) == 4


def test_when_a_webhook_was_updated_is_when_something_of_it_became_another(
    database: Database, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = a_webhook(database, project)
    assert webhook.updated_at == webhook.created_at

    def updated(change: Callable[[Session], Any]) -> int:
        monkeypatch.setattr(webhooks, "now", lambda: next(times))
        with database.write() as session:
            change(session)
        with database.read() as session:
            return webhooks.get(session, project, webhook.id).updated_at - webhook.created_at

    times = iter(range(webhook.created_at + 1, webhook.created_at + 9))
    assert updated(lambda session: webhooks.change(session, project, webhook.id, {"name": "other"})) == 1
    assert updated(lambda session: webhooks.change(session, project, webhook.id, {"name": "other", "url": URL})) == 1
    assert updated(lambda session: webhooks.change(session, project, webhook.id, {"enabled": False})) == 2
    assert updated(lambda session: webhooks.rotate_secret(session, project, webhook.id, keep_old=False)) == 3
