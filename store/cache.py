"""The result cache: answers of a project's earlier batches, for requests that ask the same of the same engine.

A project has one where `cache_bytes` is set. What was used longest ago goes first once it takes more.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import orjson
from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from store.records import CachedAnswer, Project

CHUNK = 500
"""Answers that are looked up, added or evicted in one transaction."""
OVERHEAD = 512
"""Bytes that an answer takes in the database beside its body: the rest of its row, and the indexes."""


@dataclass(frozen=True)
class Answer:
    """A response body, compressed, and the tokens of its usage."""

    compressed: bytes
    input_tokens: int
    cached_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, body: bytes, input_tokens: int, cached_tokens: int, output_tokens: int) -> Answer:
        """`body`: the response body as JSON."""
        return cls(zlib.compress(body, 1), input_tokens, cached_tokens, output_tokens)

    @property
    def body(self) -> bytes:
        """The response body as JSON."""
        return zlib.decompress(self.compressed)


def key(fingerprint: bytes, config_sha256: str, engine: Mapping[str, str]) -> str:
    """What an answer depends on, as the SHA-256 of its canonical JSON.

    Args:
        fingerprint: of the request, see inference.requests.ordering.
        config_sha256: of the model's entry in models.toml.
        engine: what the engine says of itself: engine, version, model_sha256, …
    """
    depends = {"fingerprint": fingerprint.hex(), "config_sha256": config_sha256, "engine": dict(engine)}
    return hashlib.sha256(orjson.dumps(depends, option=orjson.OPT_SORT_KEYS)).hexdigest()


def find(session: Session, project_id: str, keys: Collection[str]) -> dict[str, Answer]:
    """Those of a project's answers that are there, by key."""
    of_project = CachedAnswer.project_id == project_id
    rows = session.scalars(select(CachedAnswer).where(of_project, CachedAnswer.key.in_(keys)))
    return {row.key: Answer(row.body, row.input_tokens, row.cached_tokens, row.output_tokens) for row in rows}


def touch(session: Session, project_id: str, keys: Collection[str]) -> None:
    """Note that a project's answers were used."""
    of_project = CachedAnswer.project_id == project_id
    # What is locked is just being touched or evicted; to wait for it could be to wait for each other.
    free = select(CachedAnswer.key).where(of_project, CachedAnswer.key.in_(keys)).with_for_update(skip_locked=True)
    session.execute(
        update(CachedAnswer)
        .where(of_project, CachedAnswer.key.in_(free))
        .values(used_at=time.time())
        .execution_options(synchronize_session=False)
    )


def add(session: Session, project_id: str, answers: Mapping[str, Answer]) -> None:
    """Add answers to a project's by key; those that are there already stay as they are."""
    moment = time.time()
    rows = [
        {
            "project_id": project_id,
            "key": key,
            "body": answer.compressed,
            "input_tokens": answer.input_tokens,
            "cached_tokens": answer.cached_tokens,
            "output_tokens": answer.output_tokens,
            "bytes": len(answer.compressed) + OVERHEAD,
            "used_at": moment,
        }
        for key, answer in sorted(answers.items())  # in one order, so that two who add the same never deadlock
    ]
    if session.get_bind().dialect.name == "sqlite":
        session.execute(sqlite.insert(CachedAnswer).on_conflict_do_nothing(), rows)
    else:
        session.execute(postgresql.insert(CachedAnswer).on_conflict_do_nothing(), rows)


def excess(session: Session) -> dict[str, int]:
    """By how many bytes projects have more than they may; one without `cache_bytes` may have nothing."""
    taken, bound = func.sum(CachedAnswer.bytes), func.coalesce(Project.cache_bytes, 0)
    rows = session.execute(
        select(Project.id, taken - bound)
        .join(CachedAnswer, CachedAnswer.project_id == Project.id)
        .group_by(Project.id)
        .having(taken > bound)
    )
    return {project_id: int(size) for project_id, size in rows}


def evict(session: Session, project_id: str, size: int) -> int:
    """Delete the answers of a project that were used longest ago: of `size` bytes or more, CHUNK at most.

    Returns:
        Bytes that were freed.
    """
    of_project = CachedAnswer.project_id == project_id
    oldest = session.execute(
        select(CachedAnswer.key, CachedAnswer.bytes)
        .where(of_project)
        .order_by(CachedAnswer.used_at)
        .limit(CHUNK)
        .with_for_update(skip_locked=True)
    )
    keys, freed = [], 0
    for key, taken in oldest:
        if freed >= size:
            break
        keys.append(key)
        freed += taken
    session.execute(delete(CachedAnswer).where(of_project, CachedAnswer.key.in_(keys)))
    return freed
