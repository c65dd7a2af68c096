"""Garbage: which content records still point at, and which parts are not needed any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import CursorResult, delete, func, select
from sqlalchemy.orm import Session

from batchyard.statuses import RUNNING, TERMINAL
from store import files
from store.records import Batch, File, ResultChunk, Schedule


def referenced(session: Session, hashes: Sequence[str], moment: float) -> set[str]:
    """Those of these SHA-256 that a record points at.

    Args:
        moment: a file that went later than this (Unix seconds) still counts: somebody may be reading it, or a batch
            of it may be about to be committed.
    """
    found: set[str] = set()
    for statement in (
        select(File.sha256).where(File.sha256.in_(hashes), files.live(moment)),
        select(Batch.input_sha256).where(Batch.status.in_(RUNNING), Batch.input_sha256.in_(hashes)),
        select(Batch.plan_sha256).where(Batch.status.in_(RUNNING), Batch.plan_sha256.in_(hashes)),
        select(ResultChunk.sha256).where(ResultChunk.sha256.in_(hashes)),
        select(Schedule.input_sha256).where(Schedule.input_sha256.in_(hashes)),
    ):
        found.update(sha256 for sha256 in session.scalars(statement) if sha256 is not None)
    return found


def forget_chunks(session: Session, hashes: Sequence[str], moment: float) -> int:
    """Delete the records of parts with these SHA-256 whose batch ended before `moment` (Unix seconds); how many."""
    ended_at = func.coalesce(Batch.completed_at, Batch.expired_at, Batch.cancelled_at, Batch.failed_at)
    ended = select(Batch.id).where(Batch.id == ResultChunk.batch_id, Batch.status.in_(TERMINAL), ended_at < moment)
    statement = delete(ResultChunk).where(ResultChunk.sha256.in_(hashes), ended.exists())
    return cast(CursorResult[Any], session.execute(statement.execution_options(synchronize_session=False))).rowcount
