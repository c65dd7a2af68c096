"""Events reach their receivers: at least once, signed, and without holding anything else up."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from email.utils import formatdate
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai.types.webhooks import WebhookEndpointWithSecret
from sqlalchemy import select, update

from batchyard.errors import RateLimitError, RequestError
from batchyard.local import process
from store import events, webhooks
from store.database import Database
from store.records import Batch, Delivery, Event, Webhook
from store.work import traces
from tasks import messages
from tasks.context import AppContext
from tasks.webhooks import delivery as sender
from tasks.webhooks import outbound, samples
from tests.support.receivers import Receiver, listening
from tests.support.stacks import RunningStack
from tests.support.traces import hex_ids, record_spans

NewBatch = Callable[..., Batch]
NewContext = Callable[..., AppContext]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """SQLite only: tests/store covers claims on PostgreSQL."""
    return sqlite_url


@pytest.fixture
def context(new_context: NewContext) -> AppContext:
    return new_context(webhooks_allow_private=True)


class Yard:
    """A context, its one webhook, and a worker that is this process."""

    def __init__(self, context: AppContext, project: str, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
        self.context, self.project, self.batch = context, project, batch
        self.messages: list[tuple[str, int]] = []
        monkeypatch.setattr(messages, "deliver", lambda *message: self.messages.append(message))

    def hook(self, url: str) -> Webhook:
        with self.context.database.write() as session:
            return webhooks.create(session, self.project, name="ours", url=url, event_types=list(events.TYPES))

    def happen(self, type_: str = "batch.late") -> Event:
        with self.context.database.write() as session:
            return events.record(session, self.batch, type_)

    def work(self, context: AppContext | None = None) -> Delivery:
        """Make every delivery that is due, and return the newest."""
        sender.enqueue_due(self.context)
        while self.messages:
            sender.deliver(context or self.context, *self.messages.pop(0))
        with self.context.database.read() as session:
            return session.scalars(select(Delivery).order_by(Delivery.id.desc())).first()  # type: ignore[return-value]

    def let_time_pass(self) -> None:
        with self.context.database.write() as session:
            session.execute(update(Delivery).values(next_attempt_at=time.time() - 1))


@pytest.fixture
def yard(
    context: AppContext, project: str, new_batch: NewBatch, monkeypatch: pytest.MonkeyPatch, frozen_time: float
) -> Yard:
    """Its time stands still: a delivery is due again once the test lets time pass, however slow the machine is."""
    return Yard(context, project, new_batch(), monkeypatch)


def test_a_receiver_that_was_down_gets_every_event_once_and_openai_verifies_it(yard: Yard) -> None:
    receiver = Receiver()
    webhook = yard.hook(receiver.url())
    happened = [yard.happen(f"batch.{end}") for end in ("completed", "failed", "expired", "cancelled", "at_risk")]
    for attempt in range(1, 4):
        delivery = yard.work()
        assert (delivery.state, delivery.attempts, delivery.status_code) == ("pending", attempt, None)
        assert "refused" in (delivery.error or "")
        yard.let_time_pass()
    with listening(receiver):
        assert yard.work().state == "delivered"
        yard.let_time_pass()
        yard.work()
    assert Counter(request.id for request in receiver.received) == {event.id: 1 for event in happened}
    for request in receiver.received:
        event = request.unwrap(webhook.secret)
        assert (event.id, event.object, event.data.id) == (request.id, "event", yard.batch.id)
        assert request.headers["Content-Type"] == "application/json"
    assert {json.loads(request.body)["type"] for request in receiver.received} == {event.type for event in happened}


def test_a_changed_body_another_id_and_an_old_secret_are_refused_by_openai(yard: Yard) -> None:
    with listening(Receiver()) as receiver:
        webhook = yard.hook(receiver.url())
        yard.happen("batch.completed")
        yard.work()
    (request,) = receiver.received
    request.unwrap(webhook.secret)
    headers, body = dict(request.headers), request.body
    for changed in (
        {"body": body.replace(b"completed", b"cancelled")},
        {"headers": headers | {"webhook-id": "evt_other"}},
        {"headers": headers | {"webhook-timestamp": str(int(time.time()) - 301)}},
    ):
        forged = type(request)(**{"path": request.path, "headers": headers, "body": body, **changed})
        with pytest.raises(openai.InvalidWebhookSignatureError):
            forged.unwrap(webhook.secret)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        request.unwrap(webhooks.new_secret())


def test_each_attempt_has_the_events_id_and_a_signature_of_its_own_time(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(Receiver(status=503)) as receiver:
        webhook = yard.hook(receiver.url())
        event = yard.happen("batch.completed")
        yard.work()
        a_second_later = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(seconds=1))
        monkeypatch.setattr(sender, "datetime", a_second_later)
        yard.let_time_pass()
        yard.work()
    first, second = receiver.received
    assert first.id == second.id == event.id
    assert first.body == second.body
    assert int(first.headers["webhook-timestamp"]) < int(second.headers["webhook-timestamp"])
    second.unwrap(webhook.secret)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_any_2xx_is_a_delivery(yard: Yard, status: int) -> None:
    with listening(Receiver(status=status)) as receiver:
        yard.hook(receiver.url())
        yard.happen()
        delivery = yard.work()
    assert (delivery.state, delivery.status_code, delivery.error) == ("delivered", status, None)
    assert delivery.delivered_at == pytest.approx(time.time(), abs=5)


@pytest.mark.parametrize("status", [302, 307, 400, 401, 404, 429, 500, 503])
def test_any_other_answer_is_tried_again(yard: Yard, status: int) -> None:
    with listening(Receiver(status=status, headers={"Location": "/elsewhere"})) as receiver:
        yard.hook(receiver.url())
        yard.happen()
        delivery = yard.work()
    assert (delivery.state, delivery.status_code, delivery.attempts) == ("pending", status, 1)
    assert delivery.error == f"the receiver answered {status}"
    assert delivery.next_attempt_at == pytest.approx(time.time() + 5.25, abs=1.5)
    assert [request.path for request in receiver.received] == ["/hook?from=yard"]


def test_a_receiver_that_is_gone_for_good_disables_its_webhook(yard: Yard) -> None:
    with listening(Receiver(status=410)) as receiver:
        webhook = yard.hook(receiver.url())
        yard.happen()
        delivery = yard.work()
        assert (delivery.state, delivery.status_code) == ("failed", 410)
        yard.happen()
        yard.let_time_pass()
        assert yard.work().id == delivery.id
    assert len(receiver.received) == 1
    with yard.context.database.read() as session:
        assert not session.get_one(Webhook, webhook.id).enabled


def test_a_receiver_may_ask_for_more_time_within_bounds(yard: Yard) -> None:
    waits = {
        "120": 120,
        formatdate(time.time() + 300, usegmt=True): 300,
        "99999999999": 3600,
        "1": 5.25,
        "soon": 5.25,
    }
    for header, wait in waits.items():
        with listening(Receiver(status=429, headers={"Retry-After": header})) as receiver:
            yard.hook(receiver.url())
            yard.happen()
            delivery = yard.work()
            assert delivery.next_attempt_at - time.time() == pytest.approx(wait, abs=2), header
            with yard.context.database.write() as session:
                webhooks.remove(session, yard.project, delivery.webhook_id)


def test_waits_grow_by_half_and_the_last_attempt_is_about_a_day_after_the_first(yard: Yard) -> None:
    waits = [sender.pause(attempt) for attempt in range(1, sender.ATTEMPTS)]
    for attempt, wait in enumerate(waits, 1):
        assert 1 <= wait / min(5 * 1.5 ** (attempt - 1), 3600) <= 1.1
    assert 22 <= sum(waits) / 3600 <= 26
    assert len({sender.pause(8) for _ in range(10)}) == 10
    receiver = Receiver()
    yard.hook(receiver.url())
    yard.happen()
    for _ in range(sender.ATTEMPTS):
        delivery = yard.work()
        yard.let_time_pass()
    assert (delivery.state, delivery.attempts) == ("failed", sender.ATTEMPTS)
    assert yard.work().attempts == sender.ATTEMPTS


def test_after_five_minutes_down_everything_arrives_within_two_and_a_half_more() -> None:
    for _ in range(100):
        tried_at = accumulate((sender.pause(attempt) for attempt in range(1, sender.ATTEMPTS)), initial=0.0)
        assert next(at for at in tried_at if at >= 300) < 450


def test_what_is_no_http_is_a_failure_that_repeats_nothing_of_it(yard: Yard) -> None:
    with listening(Receiver(stall=lambda connection: connection.sendall(b"+PONG secret\x00\r\n\r\n"))) as receiver:
        yard.hook(receiver.url())
        yard.happen()
        delivery = yard.work()
    assert (delivery.state, delivery.error) == ("pending", "the receiver's answer is not HTTP")


def test_a_private_address_is_refused_at_each_attempt_also_if_it_was_allowed_when_the_webhook_was_made(
    yard: Yard, new_context: NewContext
) -> None:
    with listening(Receiver()) as receiver:
        yard.hook(receiver.url("localhost", "https"))
        yard.happen()
        delivery = yard.work(new_context())
    assert receiver.received == []
    assert delivery.state == "pending"
    assert "not a public one" in (delivery.error or "")


def test_logs_name_the_delivery_and_hold_neither_url_nor_secret(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with listening(Receiver(status=500)) as receiver:
        webhook = yard.hook(receiver.url() + "&token=hush")
        yard.happen()
        delivery = yard.work()
    logged = "\n".join(str(vars(record)) for record in caplog.records)
    assert delivery.id in logged
    assert "hush" not in logged
    assert webhook.secret not in logged


# Samples


def sent(context: AppContext, webhook: Webhook, type_: str = "batch.completed") -> int:
    return samples.send_sample(context, webhook, type_)


def test_a_sample_is_signed_with_the_old_secret_too_while_that_is_kept(yard: Yard) -> None:
    with listening(Receiver(status=202)) as receiver:
        old = yard.hook(receiver.url())
        with yard.context.database.write() as session:
            new = webhooks.rotate_secret(session, yard.project, old.id, keep_old=True)
        assert sent(yard.context, new) == 202
        with yard.context.database.write() as session:
            newest = webhooks.rotate_secret(session, yard.project, old.id, keep_old=False)
        sent(yard.context, newest)
    both, alone = receiver.received
    assert both.unwrap(old.secret).data.id == both.unwrap(new.secret).data.id == samples.SAMPLE_ID
    alone.unwrap(newest.secret)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        alone.unwrap(new.secret)


def test_a_sample_goes_to_no_private_address_unless_that_is_allowed(yard: Yard, new_context: NewContext) -> None:
    with listening(Receiver()) as receiver, pytest.raises(RequestError, match="not a public one"):
        sent(new_context(), yard.hook(receiver.url("localhost", "https")))
    assert receiver.received == []


def test_a_receiver_of_samples_that_hangs_holds_one_thread_and_no_other_project(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "TOTAL_SECONDS", 60.0)
    released = threading.Event()
    with (
        listening(Receiver(stall=lambda _: released.wait())) as receiver,
        listening(Receiver()) as other,
        ThreadPoolExecutor() as pool,
    ):
        webhook, others = yard.hook(receiver.url()), yard.hook(other.url())
        hanging = pool.submit(sent, yard.context, webhook)
        receiver.wait(1)
        with pytest.raises(RateLimitError):
            sent(yard.context, webhook)
        others.project_id = "proj_other"
        assert sent(yard.context, others) == 200
        released.set()
        assert (hanging.result(), sent(yard.context, webhook)) == (200, 200)


# Through a running stack


@pytest.fixture
def tenant(stack: RunningStack, request: pytest.FixtureRequest) -> Iterator[Callable[[], RunningStack]]:
    """Makes a project of its own in the shared stack; its webhooks go at the end."""
    projects: list[RunningStack] = []

    def make() -> RunningStack:
        project = f"{request.node.name[:60]}-{len(projects)}-{time.time_ns()}"
        key = stack.client.post("/keys", cast_to=object, body={"project": project})
        projects.append(RunningStack(stack.process, stack.data, stack.url, key["key"]))  # type: ignore[index]
        return projects[-1]

    yield make
    for project in projects:
        for webhook in project.client.webhooks.list():
            project.client.webhooks.delete(webhook.id)


def hook(project: RunningStack, receiver: Receiver) -> WebhookEndpointWithSecret:
    return project.client.webhooks.create(name="ours", url=receiver.url(), event_types=["batch.failed"])


def a_batch(project: RunningStack) -> Any:
    """A batch that ends at once: nothing of it can run."""
    return project.submit("no json")


def test_a_stack_delivers_the_end_of_a_batch_once_its_receiver_is_up(tenant: Any) -> None:
    project, receiver = tenant(), Receiver()
    webhook = hook(project, receiver)
    batch = a_batch(project)
    deadline = time.monotonic() + 270
    while True:
        path = f"/webhook_endpoints/{webhook.id}/deliveries"
        listed = project.client.get(path, cast_to=object)["data"]
        if listed and listed[0]["error"]:
            break
        assert time.monotonic() < deadline, listed
        time.sleep(0.1)
    with listening(receiver):
        (request,) = receiver.wait(1)
    assert request.unwrap(webhook.signing_secret).data.id == batch.id


def test_receivers_that_hang_hold_up_neither_batches_nor_other_projects_events(tenant: Any) -> None:
    slow, quick = tenant(), tenant()
    released = threading.Event()
    hanging = Receiver(stall=lambda _: released.wait())
    with listening(hanging), listening(Receiver()) as receiver:
        for _ in range(webhooks.MAX_WEBHOOKS):
            hook(slow, hanging)
        webhook = hook(quick, receiver)
        batches = [a_batch(slow) for _ in range(3)]
        for batch in batches:
            slow.wait(batch)
        hanging.wait(sender.AT_ONCE_PER_PROJECT)
        batch = quick.wait(a_batch(quick))
        (request,) = receiver.wait(1)
        assert request.unwrap(webhook.signing_secret).data.id == batch.id
        # Four at once, each for ten seconds: all of them would take two and a half minutes.
        assert sum(other.at < request.at for other in hanging.received) < len(batches) * webhooks.MAX_WEBHOOKS
        released.set()


def test_a_worker_that_is_killed_while_it_delivers_loses_nothing(tenant: Any, stack: RunningStack) -> None:
    project = tenant()
    killed = threading.Event()
    receiver = Receiver(stall=lambda _: killed.wait(300))
    with listening(receiver):
        webhook = hook(project, receiver)
        batch = a_batch(project)
        receiver.wait(1)
        process.kill(stack.processes("webhooks"))
        receiver.stall = None
        killed.set()
        database = Database(stack.processes("web")[0].environ()["DATABASE_URL"])
        with database.write() as session:  # as if the claim of the killed worker had run out
            claimed = Delivery.webhook_id == webhook.id
            session.execute(update(Delivery).where(claimed).values(next_attempt_at=time.time()))
        database.close()
        first, *_, last = receiver.wait(2)
    assert first.id == last.id
    assert last.unwrap(webhook.signing_secret).data.id == batch.id


def test_each_attempt_has_a_span_in_the_trace_of_its_batch(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_spans(monkeypatch)
    with listening(Receiver(status=503)) as receiver:
        yard.hook(receiver.url())
        yard.happen("batch.late")
        yard.work()
        receiver.status = 200
        yard.let_time_pass()
        yard.work()
    refused, delivered = recorder.of("webhook batch.late")
    assert (refused.trace, refused.parent) == (delivered.trace, delivered.parent) == hex_ids(traces.place(yard.batch))
    assert (refused.error, delivered.error) == (True, False)
    assert refused.attributes["http.response.status_code"] == 503
    assert delivered.attributes == {"batchyard.attempt": 2, "http.response.status_code": 200}


def test_a_callback_gets_the_end_alone_signed_with_the_projects_secret_for_callbacks(yard: Yard) -> None:
    with yard.context.database.write() as session:
        hook = webhooks.callbacks(session, yard.project)
        assert webhooks.callbacks(session, yard.project).id == hook.id
    yard.happen("batch.completed")  # its batch has no callback_url
    with listening(Receiver(status=410)) as receiver, listening(Receiver()) as other:
        with yard.context.database.write() as session:
            session.get_one(Batch, yard.batch.id).callback_url = receiver.url()
        with yard.context.database.read() as session:
            yard.batch = session.get_one(Batch, yard.batch.id)
        yard.happen("batch.late")
        ended = yard.happen("batch.completed")
        assert yard.work().state == "failed"
        (received,) = receiver.received
        assert received.unwrap(hook.secret).id == ended.id
        with yard.context.database.write() as session:
            assert webhooks.get(session, yard.project, hook.id).enabled, "a receiver that is gone ended all callbacks"
            session.get_one(Batch, yard.batch.id).callback_url = other.url()
            fresh = webhooks.rotate_secret(session, yard.project, webhooks.CALLBACKS, keep_old=False)
            webhooks.redeliver(session, fresh, yard_delivery(yard).id)
        assert yard.work().state == "delivered"
        assert other.received[0].unwrap(fresh.secret).data.id == yard.batch.id


def yard_delivery(yard: Yard) -> Delivery:
    with yard.context.database.read() as session:
        return session.scalars(select(Delivery)).one()


def test_a_callback_to_a_private_address_is_not_sent(
    new_context: NewContext, project: str, new_batch: NewBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(Receiver()) as receiver:
        batch = new_batch()
        yard = Yard(new_context(), project, batch, monkeypatch)
        with yard.context.database.write() as session:
            webhooks.callbacks(session, project)
            yard.batch = session.get_one(Batch, batch.id)
            yard.batch.callback_url = receiver.url("localhost").replace("http:", "https:")
        yard.happen("batch.failed")
        assert "not a public one" in (yard.work().error or "")
        assert receiver.received == []
