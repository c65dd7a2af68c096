"""Projects and their API keys. A key is `by-<id>-<secret>`; only the secret's SHA-256 is kept.

The secret is 256 random bits, so one plain hash is as good as a slow one.
"""

import hashlib
import hmac
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, and_, or_, select, true, update
from sqlalchemy.orm import Session

from batchyard.errors import NotFoundError
from store import listing, projects
from store.records import ApiKey, Project, added, new_id, now

NO_SECRET = ""
"""The `secret_sha256` of a key that no secret opens: that of a user without a key (store.sessions)."""
USE_SECONDS = 300
"""The last use of a key is written at most once in so many seconds: each request would cost a write otherwise."""


@dataclass(frozen=True)
class Principal:
    """The sender of a request, with what people call the key.

    `unnoted` is True if the record of the key does not say that it was used just now.
    """

    project_id: str
    admin: bool
    key_id: str
    name: str
    unnoted: bool = False


@dataclass(frozen=True)
class NewKey:
    """A new key. `key` is readable only here."""

    id: str
    key: str = field(repr=False)
    project: str
    admin: bool
    created_at: int
    label: str | None = None
    expires_at: int | None = None


@dataclass(frozen=True)
class Key:
    """A key without its secret. `project` is the project's name."""

    id: str
    project: str
    admin: bool
    created_at: int
    label: str | None
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None

    @property
    def name(self) -> str:
        """What people call the key."""
        return name_of(self)


def name_of(key: Key | ApiKey) -> str:
    """Return what people call a key: its label, or the end of its id."""
    return key.label or f"key …{key.id[-8:]}"


def digest(secret: str) -> str:
    """Return the SHA-256 under which a secret is known."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create(
    session: Session, project: str, *, admin: bool = False, label: str | None = None, expires_after: int | None = None
) -> NewKey:
    """Create a key for the project of that name. Create the project if it does not exist.

    `label`: whose it is, or what it is for. `expires_after`: seconds for which it opens the project; None for no end.
    Raises RequestError: the project's name is empty, longer than 128 characters, or has control characters.
    """
    project_id = projects.get_or_create(session, project).id
    key_id, secret, created_at = new_id(""), secrets.token_hex(32), now()
    expires_at = created_at + expires_after if expires_after else None
    values = {"admin": admin, "label": label, "created_at": created_at, "expires_at": expires_at}
    added(session, ApiKey(id=key_id, project_id=project_id, secret_sha256=digest(secret), **values))
    return NewKey(key_id, f"by-{key_id}-{secret}", project, admin, created_at, label, expires_at)


def create_admin(session: Session) -> NewKey:
    """Create the admin key that a deployment begins with: `admin.key` in its data folder."""
    return create(session, "default", admin=True, label="admin.key")


def in_use(at: int) -> ColumnElement[bool]:
    """Return the condition for keys that open their project at `at` (Unix seconds)."""
    return and_(ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > at))


def has_admin(session: Session) -> bool:
    """True if an admin key is in use."""
    return bool(admin_projects(session))


def admin_projects(session: Session) -> Sequence[str]:
    """Return the ids of the projects with an admin key in use.

    Administrators without a key do not count: their provider may be gone.
    """
    is_admin = (ApiKey.admin, ApiKey.secret_sha256 != NO_SECRET, in_use(now()))
    return session.scalars(select(ApiKey.project_id).where(*is_admin).distinct()).all()


def page(
    session: Session, *, project: str | None = None, after: str | None = None, limit: int = 100
) -> tuple[Sequence[Key], bool]:
    """Return keys of a project's name or of all (None), newest first, and if more follow. Raises RequestError."""
    names = {record.id: record.name for record in session.scalars(select(Project))}
    scope = true() if project is None else ApiKey.project_id.in_(select(Project.id).where(Project.name == project))
    records, more = listing.page(session, ApiKey, scope, after=after, limit=limit, descending=True)
    return [_key(record, names[record.project_id]) for record in records], more


def get(session: Session, key_id: str) -> Key:
    """Return a key of any project. Raises NotFoundError."""
    record = find(session, key_id)
    return _key(record, session.get_one(Project, record.project_id).name)


def revoke(session: Session, key_id: str) -> Key:
    """Revoke a key for good. Revoking it twice changes nothing. Raises NotFoundError."""
    record = find(session, key_id, lock=True)
    if record.revoked_at is None:
        record.revoked_at = now()
    return _key(record, session.get_one(Project, record.project_id).name)


def find(session: Session, key_id: str, *, lock: bool = False) -> ApiKey:
    """Return the record of a key. Raises NotFoundError."""
    record = session.get(ApiKey, key_id, with_for_update=lock or None)
    if record is None:
        raise NotFoundError(f"No API key found with id '{key_id}'.", param="key_id")
    return record


def _key(record: ApiKey, project: str) -> Key:
    times = (record.expires_at, record.last_used_at, record.revoked_at)
    return Key(record.id, project, record.admin, record.created_at, record.label, *times)


def named(session: Session, project_id: str | None, key_ids: Collection[str]) -> dict[str, str]:
    """Return what people call the keys with these ids, of a project or of all (None), by id."""
    statement = select(ApiKey).where(ApiKey.id.in_(key_ids))
    if project_id is not None:
        statement = statement.where(ApiKey.project_id == project_id)
    return {record.id: name_of(record) for record in session.scalars(statement)}


def valid(session: Session, key_ids: Collection[str]) -> set[str]:
    """Return those of the keys that open their project now."""
    return set(session.scalars(select(ApiKey.id).where(ApiKey.id.in_(key_ids), in_use(now()))))


def caller_of(record: ApiKey) -> Principal:
    """Return the caller that a key belongs to."""
    unnoted = (record.last_used_at or 0) <= now() - USE_SECONDS
    return Principal(record.project_id, record.admin, record.id, name_of(record), unnoted)


def terminal(session: Session, project: str) -> Principal:
    """Return who works on the database with a command, without a key. `project`: its name."""
    return Principal(projects.named(session, project), True, "terminal", "a terminal of the server")


def terminal_of_deployment(session: Session) -> Principal:
    """Return who changes the deployment with a command: for the audit, of the oldest project."""
    project_id = session.scalar(select(Project.id).order_by(Project.id).limit(1))
    if project_id is None:
        raise NotFoundError("There is no project yet; make one with `batchyard key create --project NAME --admin`.")
    return Principal(project_id, True, "terminal", "a terminal of the server")


def terminal_beside(session: Session, project_id: str) -> Principal:
    """Return who erases a project with a command: for the audit, of another project that has an admin key.

    That of the project itself, if no other has one.
    """
    others = select(ApiKey.project_id).where(ApiKey.admin, ApiKey.project_id != project_id, in_use(now()))
    other_id = session.scalar(others.order_by(ApiKey.id).limit(1))
    return Principal(other_id or project_id, True, "terminal", "a terminal of the server")


def note_use(session: Session, key_id: str) -> None:
    """Note that a key is used now."""
    session.execute(update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=now()))


def authenticate(session: Session, key: str) -> Principal | None:
    """Return the caller of a key, or None. Takes the same time for an unknown key."""
    _, key_id, secret = [*key.split("-", 2), "", ""][:3]
    record = session.scalar(select(ApiKey).where(ApiKey.id == key_id, in_use(now())))
    matches = hmac.compare_digest(record.secret_sha256 if record else "0" * 64, digest(secret))
    return caller_of(record) if record is not None and matches else None
