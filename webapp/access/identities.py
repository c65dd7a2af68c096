"""Who somebody is that has no API key, and which projects their groups open (BATCHYARD_GROUP_PROJECTS).

A proxy may name users in headers, as oauth2-proxy does. Only those of BATCHYARD_IDENTITY_PROXIES are believed. What
counts is the address that the connection comes from; of those in X-Forwarded-For it is the last one, and only behind
the gateway, which appends its own peer.
"""

import dataclasses
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

import flask

from batchyard.errors import PermissionDeniedError
from batchyard.settings import Settings
from batchyard.wording import quoted
from store import sessions
from store.sessions import User, Visitor
from tasks.context import AppContext
from webapp.access import audit

EVERYBODY = "*"
"""The group of all who are signed in."""
ISSUER = "proxy"
"""The issuer of all users whom proxies name: these speak for one directory."""


@dataclass(frozen=True)
class Identity:
    """An authenticated user with the projects that they may enter, the preferred one first."""

    user: User
    projects: tuple[str, ...]
    admin: bool


def identify(settings: Settings, user: User, groups: Iterable[str]) -> Identity:
    """Return what a user's groups allow. Raises PermissionDeniedError: they open no project."""
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

    Raises PermissionDeniedError: it is none of theirs, or their access was revoked; RequestError: no such name can be.
    """
    if project not in identity.projects:
        raise PermissionDeniedError(f"None of your groups opens project {quoted(project)}.")
    with context.database.read() as session:
        visitor = sessions.find_user(session, identity.user, project, admin=identity.admin)
    if visitor is not None:
        return visitor
    with context.database.write() as session:
        return sessions.enter(session, identity.user, project, admin=identity.admin)


def named_user(settings: Settings) -> Identity | None:
    """Return the user whom the request's headers name; None if they name none, or no proxy may name any.

    Raises PermissionDeniedError: the headers are not a trusted proxy's, are ambiguous, or the groups open no project.
    """
    if not settings.identity_networks:
        return None
    user, email, groups = map(_header, (settings.user_header, settings.email_header, settings.groups_header))
    if user is None and email is None and groups is None:
        return None
    address = peer(settings)
    if not _is_trusted(address, settings):
        raise _refused(
            f"This request names a user in its headers, and it comes from {quoted(address)}, which is none of "
            "BATCHYARD_IDENTITY_PROXIES."
        )
    if not user or "," in user:  # several headers are one with commas: a client's own, and the proxy's
        raise _refused(f"Header {settings.user_header} does not name one user.")
    name = email if email and "," not in email else user
    return identify(settings, User(ISSUER, user, name), (group.strip() for group in (groups or "").split(",")))


def peer(settings: Settings) -> str:
    """Return the address that the request's connection comes from."""
    environ = flask.request.environ
    if settings.behind_gateway:  # it appends its own peer
        return str(environ.get("HTTP_X_FORWARDED_FOR", "")).rpartition(",")[2].strip()
    return str(environ.get("werkzeug.proxy_fix.orig", environ)["REMOTE_ADDR"] or "")


def _is_trusted(address: str, settings: Settings) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # a Unix socket has none
        return False
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(parsed in network for network in settings.identity_networks)


def _header(name: str) -> str | None:
    """Return a header's text, which is UTF-8 that WSGI has read as Latin-1; None if it is not there."""
    value = flask.request.headers.get(name)
    if value is None:
        return None
    text = value.encode("latin-1", "replace").decode("utf-8", "replace").strip()
    return "".join(character for character in text if character.isprintable())


def _refused(message: str) -> PermissionDeniedError:
    audit.note("sign_in.header")
    return PermissionDeniedError(message)
