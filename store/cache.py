"""The result cache: answers of a project's earlier batches, for equal requests to the same engine.

A project with `cache_bytes` has one. Beyond that size the least recently used answers are evicted.
"""

import hashlib
import time
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import orjson
from sqlalchemy import delete, func, select, tuple_, update
from sqlalchemy.orm import Session

from batchyard import json_lines
from store.database import insert
from store.records import Batch, CachedAnswer, Project

CHUNK = 500
"""Most answers to find, add or evict in one transaction."""
OVERHEAD = 512
"""Bytes of an answer in the database beside its body: the rest of its row, and the indexes."""


def key(fingerprint: bytes, config_sha256: str, engine: Mapping[str, str]) -> str:
    """Return the cache key of an answer: the SHA-256 of the canonical JSON of everything it depends on.

    `fingerprint` is the request's (inference.requests.ordering); `engine` the engine's description of itself.
    """
    dependencies = {"fingerprint": fingerprint.hex(), "config_sha256": config_sha256, "engine": dict(engine)}
    return hashlib.sha256(json_lines.dumps(dependencies, option=orjson.OPT_SORT_KEYS)).hexdigest()


def columns(body: bytes, **tokens: int) -> dict[str, Any]:
    """Return the columns of a new answer with its input, cached and output tokens. Its body is compressed."""
    compressed = zlib.compress(body, 1)
    return {"body": compressed, "bytes": len(compressed) + OVERHEAD, **tokens}


def body_of(answer: CachedAnswer) -> bytes:
    return zlib.decompress(answer.body)


def find(session: Session, project_id: str, keys: Collection[str]) -> dict[str, CachedAnswer]:
    in_project = CachedAnswer.project_id == project_id
    return {row.key: row for row in session.scalars(select(CachedAnswer).where(in_project, CachedAnswer.key.in_(keys)))}


def touch(session: Session, project_id: str, keys: Collection[str]) -> None:
    in_project = CachedAnswer.project_id == project_id
    # A locked row is being touched or evicted already. Waiting for it could deadlock.
    unlocked = select(CachedAnswer.key).where(in_project, CachedAnswer.key.in_(keys)).with_for_update(skip_locked=True)
    session.execute(
        update(CachedAnswer)
        .where(in_project, CachedAnswer.key.in_(unlocked))
        .values(used_at=time.time())
        .execution_options(synchronize_session=False)
    )


def add(
    session: Session, project_id: str, answers: Mapping[str, Mapping[str, Any]], batch_id: str | None = None
) -> None:
    """Add answers (`columns`) of a batch to a project's cache, by key, unless it was deleted. Existing ones stay."""
    common = {"project_id": project_id, "batch_id": batch_id, "used_at": time.time()}
    if batch_id is not None:
        # Locked: whoever deletes the batch waits for this transaction, and finds its answers.
        batch = select(Batch.id).where(Batch.id == batch_id).with_for_update(read=True, key_share=True)
        if session.scalar(batch) is None:
            return
    # One order for all writers prevents deadlocks.
    rows = [{"key": key, **common, **answers[key]} for key in sorted(answers)]
    session.execute(insert(session, CachedAnswer).on_conflict_do_nothing(), rows)


def excess(session: Session) -> dict[str, int]:
    """Return the bytes of each project over its limit. Without `cache_bytes` that is 0."""
    size, limit = func.sum(CachedAnswer.bytes), func.coalesce(Project.cache_bytes, 0)
    rows = session.execute(
        select(Project.id, size - limit)
        .join(CachedAnswer, CachedAnswer.project_id == Project.id)
        .group_by(Project.id)
        .having(size > limit)
    )
    return {project_id: int(excess_bytes) for project_id, excess_bytes in rows}


def evict(session: Session, project_id: str, size: int) -> int:
    """Delete a project's least recently used answers: `size` bytes, at most CHUNK answers. Return the freed bytes."""
    in_project = CachedAnswer.project_id == project_id
    oldest = session.execute(
        select(CachedAnswer.key, CachedAnswer.bytes)
        .where(in_project)
        .order_by(CachedAnswer.used_at)
        .limit(CHUNK)
        .with_for_update(skip_locked=True)
    )
    keys, freed = [], 0
    for key, answer_bytes in oldest:
        if freed >= size:
            break
        keys.append(key)
        freed += answer_bytes
    session.execute(delete(CachedAnswer).where(in_project, CachedAnswer.key.in_(keys)))
    return freed


def forget(session: Session, batch_ids: Collection[str]) -> int:
    """Delete at most CHUNK answers that these batches have computed. Return their number."""
    of_batches = select(CachedAnswer.project_id, CachedAnswer.key).where(CachedAnswer.batch_id.in_(batch_ids))
    rows = session.execute(of_batches.order_by(CachedAnswer.key).limit(CHUNK)).all()
    chosen = tuple_(CachedAnswer.project_id, CachedAnswer.key).in_([tuple(row) for row in rows])
    session.execute(delete(CachedAnswer).where(chosen).execution_options(synchronize_session=False))
    return len(rows)
