"""A task that ends starts what may run next; one that does nothing, or breaks, starts nothing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from sqlalchemy import select

from batchyard.errors import UnavailableError
from store import segments
from store.leases import acquire_batch
from store.records import Batch, File, Segment
from tasks import advance
from tasks.context import AppContext
from tasks.execution import segment
from tasks.finishing import finalize
from tests.support.batches import create_batch
from tests.support.messages import SentMessages
from tests.support.planned import answers, finish_segment, plan_batch, reload
from tests.support.stacks import a_chat


@pytest.fixture
def unvalidated(context: AppContext, upload: Callable[[bytes], File]) -> Batch:
    """A batch of one request that no worker has validated."""
    source = upload((json.dumps(a_chat("one", "hello")) + "\n").encode())
    with context.database.write() as session:
        return create_batch(session, source)


def test_a_validated_batch_is_dispatched_at_once(context: AppContext, unvalidated: Batch, sent: SentMessages) -> None:
    advance.validate(context, unvalidated.id, "here/1/task")
    assert sent.dispatched() == [unvalidated.id]


def test_validation_that_another_holder_does_starts_nothing(
    context: AppContext, unvalidated: Batch, new_batch: Callable[..., Batch], sent: SentMessages
) -> None:
    new_batch(1)
    with context.database.write() as session:
        assert acquire_batch(session, unvalidated.id, "there/1/task", 60)
    advance.validate(context, unvalidated.id, "here/1/task")
    assert sent.dispatched() == []


def test_an_unexpected_error_of_a_segment_counts_as_an_attempt_and_no_other_starts(
    context: AppContext, new_batch: Callable[..., Batch], sent: SentMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, _ = new_batch(1), new_batch(1)
    with context.database.write() as session:
        segment_id = session.scalars(select(Segment.id).where(Segment.batch_id == batch.id)).one()
        epoch = segments.dispatch(session, segment_id, 60)

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(segment, "_hold", broken)
    with pytest.raises(RuntimeError, match="broken"):
        advance.run_segment(context, segment_id, epoch or 0, "here/1/task")
    assert sent.dispatched() == []
    with context.database.read() as session:
        failed = session.get_one(Segment, segment_id)
    assert (failed.state, failed.attempts, failed.error) == ("pending", 1, "RuntimeError: broken")


def test_who_ends_a_small_batch_finishes_it_too_after_it_has_filled_the_slot(
    context: AppContext, project: str, new_batch: Callable[..., Batch], sent: SentMessages
) -> None:
    ends, waits = plan_batch(context, project, ["one"]), new_batch(1)
    finish_segment(context, ends, answers([1]))
    advance.advance(context, "here/1/task")
    assert sent.ids("finish") == []
    assert waits.id in sent.dispatched()
    assert reload(context.database, ends).status == "completed"


def test_a_small_batch_that_cannot_be_finished_at_once_is_sent_by_housekeeping(
    context: AppContext, project: str, sent: SentMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = plan_batch(context, project, ["one"])
    finish_segment(context, batch, answers([1]))

    def away(*_: object, **_options: object) -> None:
        raise UnavailableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(finalize, "_write_files", away)
        advance.advance(context, "here/1/task")
    assert (reload(context.database, batch).status, sent.ids("finish")) == ("finalizing", [])
    with context.database.write() as session:
        session.get_one(Batch, batch.id).lease_expires_at = 0.0
    advance.advance(context)
    assert sent.ids("finish") == [batch.id]
