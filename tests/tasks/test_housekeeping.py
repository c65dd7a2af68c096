"""Housekeeping finds work whose holder died, at once where it can see that."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable

import pytest
from sqlalchemy import select

from store import segments
from store.database import Database
from store.leases import acquire_batch
from store.records import Batch, Segment
from tasks import heartbeat, housekeeping, messages
from tasks.context import AppContext


def dead() -> int:
    """The id of a process that was and is no more."""
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    assert process.pid is not None
    return process.pid


@pytest.mark.parametrize(
    ("host", "pid", "free"),
    [(heartbeat.machine(), dead, True), (heartbeat.machine(), os.getpid, False), (socket.gethostname(), dead, False)],
    ids=["of a process that died", "of a living process", "of another machine of that name"],
)
def test_a_lease_ends_before_its_time_only_with_a_process_of_this_machine(
    context: AppContext,
    database: Database,
    new_batch: Callable[..., Batch],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    pid: Callable[[], int],
    free: bool,
) -> None:
    holder = f"{host}/{pid()}/task"
    running, finishing = new_batch(1), new_batch(1)
    with database.write() as session:
        segment_id = session.scalars(select(Segment.id).where(Segment.batch_id == running.id)).one()
        epoch = segments.dispatch(session, segment_id, 60)
        assert epoch is not None and segments.start(session, segment_id, epoch, holder, 60)
        session.get_one(Batch, finishing.id).status = "finalizing"
        assert acquire_batch(session, finishing.id, holder, 60)
    for name in ("segment", "finish"):
        monkeypatch.setattr(messages, name, lambda *_: None)
    housekeeping.tick(context)
    with database.read() as session:
        assert (session.get_one(Segment, segment_id).holder is None) == free
        assert (session.get_one(Batch, finishing.id).holder is None) == free


def test_a_holder_is_a_process_that_lives() -> None:
    assert not heartbeat.has_died(heartbeat.holder("task"))
