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
    """Who a request comes from."""

    project_id: str
    admin: bool
    key_id: str


@dataclass(frozen=True)
class NewKey:
    """A key that was just made; `key` is seen here and never again."""

    id: str
    key: str = field(repr=False)
    project: str
    admin: bool
    created_at: int


@dataclass(frozen=True)
class Key:
    """What is known of a key. `project` is the project's name."""

    id: str
    project: str
    admin: bool
    created_at: int
    revoked_at: int | None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create(session: Session, project: str, *, admin: bool = False) -> NewKey:
    """A new key for the project of that name, which is made if there is none.

    Raises:
        RequestError: the project's name has not 1 to 128 characters, or control characters.
    """
    record = projects.get_or_create(session, project)
    key_id, secret = new_id(""), secrets.token_hex(32)
    made = ApiKey(id=key_id, project_id=record.id, secret_sha256=_digest(secret), admin=admin, created_at=now())
    session.add(made)
    session.flush()
    return NewKey(key_id, f"by-{key_id}-{secret}", project, admin, made.created_at)


def page(
    session: Session, *, project: str | None = None, after: str | None = None, limit: int = 100
) -> tuple[Sequence[Key], bool]:
    """Keys, revoked ones too, newest first, of the project of that name or of all; whether there are more.

    Raises:
        RequestError: `after` is no key of these.
    """
    names = {record.id: record.name for record in session.scalars(select(Project))}
    scope = true() if project is None else ApiKey.project_id.in_(select(Project.id).where(Project.name == project))
    found, more = listing.page(session, ApiKey, scope, after=after, limit=limit, descending=True)
    return [_known(record, names[record.project_id]) for record in found], more


def revoke(session: Session, key_id: str) -> Key:
    """End a key for good; one that is revoked already stays as it is. Raises NotFoundError."""
    record = session.get(ApiKey, key_id, with_for_update=True)
    if record is None:
        raise NotFoundError(f"No API key found with id '{key_id}'.", param="key_id")
    if record.revoked_at is None:
        record.revoked_at = now()
    return _known(record, session.get_one(Project, record.project_id).name)


def _known(record: ApiKey, project: str) -> Key:
    return Key(record.id, project, record.admin, record.created_at, record.revoked_at)


def authenticate(session: Session, key: str) -> Caller | None:
    """The caller a key belongs to, or None. Takes the same time whether the key exists or not."""
    _, key_id, secret = [*key.split("-", 2), "", ""][:3]
    record = session.get(ApiKey, key_id)
    matches = hmac.compare_digest(record.secret_sha256 if record else "0" * 64, _digest(secret))
    if record is None or not matches or record.revoked_at is not None:
        return None
    return Caller(record.project_id, record.admin, record.id)
