"""Sessions of the web pages. The browser holds a random token; the database has only its SHA-256."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from store.keys import Principal, caller_of, in_use
from store.records import ApiKey, Project, WebSession, now

SECONDS = 12 * 3600
"""Lifetime of a session."""


@dataclass(frozen=True)
class Visitor:
    """A signed-in user of the web pages: the caller of their key, and the name of its project."""

    caller: Principal
    project: str


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def create(session: Session, key_id: str) -> str:
    """Create a session for a key and delete expired ones. Return its token."""
    token, created_at = secrets.token_urlsafe(32), now()
    session.execute(delete(WebSession).where(WebSession.expires_at <= created_at))
    session.add(WebSession(token_sha256=_digest(token), key_id=key_id, expires_at=created_at + SECONDS))
    session.flush()
    return token


def find(session: Session, token: str) -> Visitor | None:
    """Return the visitor of a session.

    None if it has expired or ended, or its key opens nothing any more.
    """
    row = session.execute(
        select(ApiKey, Project.name)
        .join(WebSession, WebSession.key_id == ApiKey.id)
        .join(Project, Project.id == ApiKey.project_id)
        .where(WebSession.token_sha256 == _digest(token), WebSession.expires_at > now(), in_use(now()))
    ).one_or_none()
    if row is None:
        return None
    key, project = row
    return Visitor(caller_of(key), project)


def end(session: Session, token: str) -> None:
    """End a session, if it exists."""
    session.execute(delete(WebSession).where(WebSession.token_sha256 == _digest(token)))
