"""A task that ends starts what may run next; one that does nothing, or breaks, starts nothing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from sqlalchemy import select

from store import segments
from store.leases import acquire_batch
from store.records import Batch, File, Segment
from tasks import advance
from tasks.context import AppContext
from tasks.execution import segment
from tests.support.batches import create_batch
from tests.support.messages import SentMessages
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
