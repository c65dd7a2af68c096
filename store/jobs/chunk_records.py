"""Chunks: those of a job's results and judgements, and the result chunks of its batches."""

import time
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from store.database import insert
from store.records import ChunkKind, JobChunk, ResultChunk


def add(session: Session, job_id: str, kind: ChunkKind, sha256: str, rows: int) -> bool:
    """Add a chunk to a job, under its lease. False if the job has it already."""
    values = {"job_id": job_id, "kind": kind, "sha256": sha256, "rows": rows, "created_at": time.time()}
    statement = insert(session, JobChunk).values(**values).on_conflict_do_nothing().returning(JobChunk.id)
    return session.scalar(statement) is not None


def of_job(
    session: Session,
    job_id: str,
    kind: ChunkKind | None = None,
    *,
    since: float | None = None,
    until: float | None = None,
) -> Sequence[JobChunk]:
    """Return a job's chunks in the order in which they were added: of a kind, and between these times, or all."""
    statement = select(JobChunk).where(JobChunk.job_id == job_id)
    if kind is not None:
        statement = statement.where(JobChunk.kind == kind)
    if since is not None:
        statement = statement.where(JobChunk.created_at >= since)
    if until is not None:
        statement = statement.where(JobChunk.created_at <= until)
    return session.scalars(statement.order_by(JobChunk.id)).all()


def of_batch(session: Session, batch_id: str, after: int) -> list[tuple[int, str]]:
    """Return (id, SHA-256) of later result chunks. Ids rise in the order of commits."""
    rows = session.execute(
        select(ResultChunk.id, ResultChunk.sha256)
        .where(ResultChunk.batch_id == batch_id, ResultChunk.id > after)
        .order_by(ResultChunk.id)
    )
    return [(chunk_id, sha256) for chunk_id, sha256 in rows]


def of_segment(session: Session, segment_id: int) -> list[str]:
    statement = select(ResultChunk.sha256).where(ResultChunk.segment_id == segment_id)
    return list(session.scalars(statement.order_by(ResultChunk.id)))
