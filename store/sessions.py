"""Sessions of the web pages, and people who sign in to these without an API key.

The browser of a session holds a random token; the database has only its SHA-256. A user without a key has a record
beside the API keys in each project that they enter, which no secret opens: so an administrator can revoke it.
"""

import secrets
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from batchyard.errors import PermissionDeniedError
from batchyard.wording import quoted
from store import projects
from store.database import locked
from store.keys import NO_SECRET, Principal, caller_of, digest, in_use
from store.records import ApiKey, Project, WebSession, now

SECONDS = 12 * 3600
"""Lifetime of a session."""
USER = "user_"
"""Begins the ids of users' records."""
MAX_NAME = 128


@dataclass(frozen=True)
class Visitor:
    """A signed-in user of the web pages: the caller of their key, and the name of its project."""

    caller: Principal
    project: str


@dataclass(frozen=True)
class User:
    """Somebody whom a proxy or a provider has authenticated: `issuer` and `subject` for good, `name` for people."""

    issuer: str
    subject: str
    name: str


def create(session: Session, key_id: str) -> str:
    """Create a session for a key and delete expired ones. Return its token."""
    token, created_at = secrets.token_urlsafe(32), now()
    session.execute(delete(WebSession).where(WebSession.expires_at <= created_at))
    session.add(WebSession(token_sha256=digest(token), key_id=key_id, expires_at=created_at + SECONDS))
    session.flush()
    return token


def find(session: Session, token: str) -> Visitor | None:
    """Return the visitor of a session; None if it has ended, or its key opens nothing any more."""
    row = session.execute(
        select(ApiKey, Project.name)
        .join(WebSession, WebSession.key_id == ApiKey.id)
        .join(Project, Project.id == ApiKey.project_id)
        .where(WebSession.token_sha256 == digest(token), WebSession.expires_at > now(), in_use(now()))
    ).one_or_none()
    if row is None:
        return None
    key, project = row
    return Visitor(caller_of(key), project)


def end(session: Session, token: str) -> None:
    session.execute(delete(WebSession).where(WebSession.token_sha256 == digest(token)))


def find_user(session: Session, user: User, project: str, *, admin: bool) -> Visitor | None:
    """Return a user as a visitor of a project; None before `enter`. Raises PermissionDeniedError if revoked."""
    project_id = session.scalar(select(Project.id).where(Project.name == project))
    record = None if project_id is None else session.get(ApiKey, _key_id(user, project_id))
    if record is None:
        return None
    _check(record, project)
    current = (record.label, record.admin) == (user.name[:MAX_NAME], admin)
    return Visitor(caller_of(record), project) if current else None


def enter(session: Session, user: User, project: str, *, admin: bool) -> Visitor:
    """Return a user as a visitor of a project, which may be new. Raises PermissionDeniedError, RequestError."""
    project_id = projects.get_or_create(session, project).id
    key_id = _key_id(user, project_id)
    created = {"project_id": project_id, "secret_sha256": NO_SECRET, "admin": admin, "created_at": now()}
    record = locked(session, ApiKey, {"id": key_id}, **created)
    _check(record, project)
    record.label, record.admin = user.name[:MAX_NAME], admin
    session.flush()
    return Visitor(caller_of(record), project)


def _key_id(user: User, project_id: str) -> str:
    return USER + digest("\0".join((user.issuer, user.subject, project_id)))[:40]


def _check(record: ApiKey, project: str) -> None:
    if record.revoked_at is not None:
        raise PermissionDeniedError(
            f"An administrator has revoked your access to project {quoted(project)} (record {record.id})."
        )
