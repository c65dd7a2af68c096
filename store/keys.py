"""Projects and their API keys. A key is `by-<id>-<secret>`; only the secret's SHA-256 is kept.

The secret is 256 random bits, so one plain hash is as good as a slow one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import select, true
from sqlalchemy.orm import Session

from batchyard.errors import NotFoundError
from store import listing, projects
from store.records import ApiKey, Project, new_id, now


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    project_id: str
    admin: bool
    key_id: str


@dataclass(frozen=True)
class NewKey:
    """A new key. `key` is readable only here."""

    id: str
    key: str = field(repr=False)
    project: str
    admin: bool
    created_at: int


@dataclass(frozen=True)
class Key:
    """A key without its secret. `project` is the project's name."""

    id: str
    project: str
    admin: bool
    created_at: int
    revoked_at: int | None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create(session: Session, project: str, *, admin: bool = False) -> NewKey:
    """Create a key for the project of that name. Create the project if it does not exist.

    Raises:
        RequestError: the project's name is empty, longer than 128 characters, or has control characters.
    """
    project_id = projects.get_or_create(session, project).id
    key_id, secret = new_id(""), secrets.token_hex(32)
    record = ApiKey(id=key_id, project_id=project_id, secret_sha256=_digest(secret), admin=admin, created_at=now())
    session.add(record)
    session.flush()
    return NewKey(key_id, f"by-{key_id}-{secret}", project, admin, record.created_at)


def has_admin(session: Session) -> bool:
    """True if an admin key is in use."""
    in_use = select(ApiKey.id).where(ApiKey.admin, ApiKey.revoked_at.is_(None))
    return session.scalar(in_use.limit(1)) is not None


def page(
    session: Session, *, project: str | None = None, after: str | None = None, limit: int = 100
) -> tuple[Sequence[Key], bool]:
    """Return keys of one project or of all, newest first, and True if there are more.

    Args:
        project: name of the project; None for all projects.

    Raises:
        RequestError: `after` is not one of these keys.
    """
    names = {record.id: record.name for record in session.scalars(select(Project))}
    scope = true() if project is None else ApiKey.project_id.in_(select(Project.id).where(Project.name == project))
    records, more = listing.page(session, ApiKey, scope, after=after, limit=limit, descending=True)
    return [_key(record, names[record.project_id]) for record in records], more


def revoke(session: Session, key_id: str) -> Key:
    """Revoke a key for good. Revoking it twice changes nothing. Raises NotFoundError."""
    record = session.get(ApiKey, key_id, with_for_update=True)
    if record is None:
        raise NotFoundError(f"No API key found with id '{key_id}'.", param="key_id")
    if record.revoked_at is None:
        record.revoked_at = now()
    return _key(record, session.get_one(Project, record.project_id).name)


def _key(record: ApiKey, project: str) -> Key:
    return Key(record.id, project, record.admin, record.created_at, record.revoked_at)


def authenticate(session: Session, key: str) -> Caller | None:
    """Return the caller of a key; None if the key is invalid. Takes the same time whether the key exists or not."""
    _, key_id, secret = [*key.split("-", 2), "", ""][:3]
    record = session.get(ApiKey, key_id)
    matches = hmac.compare_digest(record.secret_sha256 if record else "0" * 64, _digest(secret))
    if record is None or not matches or record.revoked_at is not None:
        return None
    return Caller(record.project_id, record.admin, record.id)
