"""Who somebody is that has no API key, and which projects their groups open (BATCHYARD_GROUP_PROJECTS)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from batchyard.errors import PermissionDeniedError
from batchyard.settings import Settings
from batchyard.wording import quoted
from store import sessions
from store.sessions import User, Visitor
from tasks.context import AppContext

EVERYBODY = "*"
"""The group of all who are signed in."""


@dataclass(frozen=True)
class Identity:
    """An authenticated user with the projects that they may enter, the preferred one first."""

    user: User
    projects: tuple[str, ...]
    admin: bool


def identify(settings: Settings, user: User, groups: Iterable[str]) -> Identity:
    """Return what a user's groups allow.

    Raises:
        PermissionDeniedError: they open no project.
    """
    members = frozenset(groups)
    printable = "".join(character for character in user.name if character.isprintable())
    user = dataclasses.replace(user, name=printable or user.subject)
    names = [project for group, project in settings.group_project_pairs if group == EVERYBODY or group in members]
    if not names:
        raise PermissionDeniedError(
            f"You are {quoted(user.name)}, and none of your groups opens a project: an administrator names them in "
            "BATCHYARD_GROUP_PROJECTS."
        )
    return Identity(user, tuple(dict.fromkeys(names)), not members.isdisjoint(settings.admin_group_names))


def enter(context: AppContext, identity: Identity, project: str) -> Visitor:
    """Return the visitor that a user is in one of their projects.

    Raises:
        PermissionDeniedError: it is none of theirs, or an administrator has revoked their access.
        RequestError: no project can have that name.
    """
    if project not in identity.projects:
        raise PermissionDeniedError(f"None of your groups opens project {quoted(project)}.")
    with context.database.read() as session:
        visitor = sessions.find_user(session, identity.user, project, admin=identity.admin)
    if visitor is not None:
        return visitor
    with context.database.write() as session:
        return sessions.enter(session, identity.user, project, admin=identity.admin)
