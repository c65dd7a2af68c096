"""Replies: what people and CI say to items that wait for a verdict, are stuck or have failed.

A reply is committed before anything follows from it, so it is read again after a crash. It belongs to one turn of one
life of its item, which has one reply of each kind.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError
from store.records import JobReply, ReplyKind, added


def add(
    session: Session,
    job_id: str,
    place: tuple[int, int, int],
    kind: ReplyKind,
    body: Mapping[str, Any],
    key_id: str | None,
) -> JobReply:
    """Add a reply to an item's position, life and turn. Raises ConflictError: that turn has a reply of this kind.

    The transaction has locked the job (`lifecycle.locked`), so ids rise in the order of commits.
    """
    position, life, turn = place
    same = (JobReply.position == position, JobReply.life == life, JobReply.turn == turn, JobReply.kind == kind)
    if session.scalar(select(JobReply.id).where(JobReply.job_id == job_id, *same)) is not None:
        raise ConflictError(f"Turn {turn} of life {life} of the item has its {kind} already.", code="already_replied")
    reply = JobReply(job_id=job_id, position=position, life=life, turn=turn, kind=kind, body=dict(body), key_id=key_id)
    return added(session, reply)


def of_item(session: Session, job_id: str, position: int) -> Sequence[JobReply]:
    statement = select(JobReply).where(JobReply.job_id == job_id, JobReply.position == position)
    return session.scalars(statement.order_by(JobReply.id)).all()


def after(session: Session, job_id: str, reply_id: int) -> Sequence[JobReply]:
    statement = select(JobReply).where(JobReply.job_id == job_id, JobReply.id > reply_id)
    return session.scalars(statement.order_by(JobReply.id)).all()
