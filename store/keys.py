"""Projects and their API keys. A key is `by-<id>-<secret>`; only the secret's SHA-256 is kept.

The secret is 256 random bits, so one plain hash is as good as a slow one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from store.records import ApiKey, Project, new_id, now


@dataclass(frozen=True)
class Caller:
    """Who a request comes from."""

    project_id: str
    admin: bool


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create(session: Session, project: str, *, admin: bool = False) -> str:
    """A new key for the project of that name, which is made if there is none. The only time the key is seen."""
    record = session.scalar(select(Project).where(Project.name == project))
    if record is None:
        record = Project(id=new_id("proj_"), name=project, created_at=now())
        session.add(record)
        session.flush()
    key_id, secret = secrets.token_hex(8), secrets.token_hex(32)
    session.add(ApiKey(id=key_id, project_id=record.id, secret_sha256=_digest(secret), admin=admin, created_at=now()))
    return f"by-{key_id}-{secret}"


def authenticate(session: Session, key: str) -> Caller | None:
    """The caller a key belongs to, or None. Takes the same time whether the key exists or not."""
    _, key_id, secret = [*key.split("-", 2), "", ""][:3]
    record = session.get(ApiKey, key_id)
    matches = hmac.compare_digest(record.secret_sha256 if record else "0" * 64, _digest(secret))
    if record is None or not matches or record.revoked_at is not None:
        return None
    return Caller(record.project_id, record.admin)
