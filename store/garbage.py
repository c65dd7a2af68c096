"""Garbage: find the content that records still reference, and delete the records of old result chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import CursorResult, delete, select
from sqlalchemy.orm import Session

from batchyard.statuses import RUNNING, TERMINAL
from store import files
from store.batches import ENDED_AT
from store.records import Batch, File, ResultChunk, Schedule


def referenced(session: Session, hashes: Sequence[str], live_at: float) -> set[str]:
    """Return the hashes (SHA-256) that a record references.

    Args:
        live_at: Unix seconds; a file that expired later counts too, for somebody may be reading it or a batch of it
            may be about to be committed.
    """
    references: set[str] = set()
    for statement in (
        select(File.sha256).where(File.sha256.in_(hashes), files.live(live_at)),
        select(Batch.input_sha256).where(Batch.status.in_(RUNNING), Batch.input_sha256.in_(hashes)),
        select(Batch.plan_sha256).where(Batch.status.in_(RUNNING), Batch.plan_sha256.in_(hashes)),
        select(Batch.seconds_sha256).where(Batch.seconds_sha256.in_(hashes)),
        select(ResultChunk.sha256).where(ResultChunk.sha256.in_(hashes)),
        select(Schedule.input_sha256).where(Schedule.input_sha256.in_(hashes)),
    ):
        references.update(sha256 for sha256 in session.scalars(statement) if sha256 is not None)
    return references


def forget_chunks(session: Session, hashes: Sequence[str], before: float) -> int:
    """Delete records of result chunks with these SHA-256 whose batch ended before `before` (Unix seconds).

    Returns:
        The number of deleted records.
    """
    ended = select(Batch.id).where(Batch.id == ResultChunk.batch_id, Batch.status.in_(TERMINAL), before > ENDED_AT)
    statement = delete(ResultChunk).where(ResultChunk.sha256.in_(hashes), ended.exists())
    return cast(CursorResult[Any], session.execute(statement.execution_options(synchronize_session=False))).rowcount
