"""/sign-in and /sign-out.

A session is a random token in a cookie that gives access to the pages, never to the API.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from urllib.parse import urlsplit

import flask
from flask import Blueprint, g
from flask.typing import ResponseReturnValue

from batchyard.errors import AuthenticationError, PermissionDeniedError, UnavailableError
from store import keys, sessions
from store.sessions import Visitor
from webapp import limits
from webapp.errors import wants_page
from webapp.requests import admit as admit_caller
from webapp.requests import current_context

routes = Blueprint("sessions", __name__)

COOKIE = "batchyard_session"
OPEN = ("pages.sessions.show", "pages.sessions.sign_in")
# A path on this server: no host, and no character that browsers skip or turn into a slash.
LOCAL_PATH = re.compile(r"/(?!/)[!-\[\]-~]*")


def visitor() -> Visitor | None:
    """Return the visitor who has signed in; None if nobody has."""
    current: Visitor | None = g.get("visitor")
    return current


def csrf_token() -> str:
    """Return the value of field `csrf` in every POST form. Only pages of the same session know it."""
    return hmac.new(flask.request.cookies.get(COOKIE, "").encode(), b"csrf", hashlib.sha256).hexdigest()


def admit() -> None:
    """Resume the session of a request for a page; `caller()` then returns its caller. Runs before every page.

    Raises:
        AuthenticationError: there is no session.
        PermissionDeniedError: a POST did not come from a form of this session's pages.
        RateLimitError.
    """
    posted = flask.request.method not in ("GET", "HEAD", "OPTIONS")
    if posted:
        _check_origin()
    if flask.request.endpoint in OPEN:
        return
    current = _resume()
    if current is None:
        raise AuthenticationError("Sign in to see this page.")
    g.visitor = current
    admit_caller(current.caller)
    if posted and not hmac.compare_digest(flask.request.form.get("csrf", "").encode(), csrf_token().encode()):
        raise PermissionDeniedError("This form is of another session; load its page again, then send it.")


def recognise() -> None:
    """Show the navigation to a visitor who has signed in also where nobody has to: at an unknown address, at /docs."""
    if "pages" not in flask.request.blueprints and wants_page():
        with contextlib.suppress(UnavailableError):
            g.visitor = _resume()


def _resume() -> Visitor | None:
    token = flask.request.cookies.get(COOKIE, "")
    if not token:
        return None
    with current_context().database.read() as session:
        return sessions.find(session, token)


def _check_origin() -> None:
    """Raise PermissionDeniedError if another site's page sent the request."""
    site, origin = flask.request.headers.get("Sec-Fetch-Site"), flask.request.headers.get("Origin")
    if site is None and origin is not None:  # an old browser, or a server without TLS
        site = "same-origin" if urlsplit(origin).netloc == flask.request.host else "cross-site"
    if site not in (None, "same-origin"):
        raise PermissionDeniedError("This form was sent by another site; open the page here, then send it.")


def _next_path() -> str:
    """Return the path of the page after signing in."""
    path = flask.request.values.get("next", "")
    return path if LOCAL_PATH.fullmatch(path) else "/"


@routes.get("/sign-in")
def show() -> ResponseReturnValue:
    return flask.render_template("sign_in.html", next=_next_path())


@routes.post("/sign-in")
def sign_in() -> ResponseReturnValue:
    context = current_context()
    address = flask.request.remote_addr or ""
    limits.check_sign_in(address)
    with context.database.read() as session:
        owner = keys.authenticate(session, flask.request.form.get("key", "").strip())
    if owner is None:
        limits.count_failed_sign_in(address)
        page = flask.render_template("sign_in.html", next=_next_path(), wrong=True)
        return page, AuthenticationError.status
    with context.database.write() as session:
        token = sessions.create(session, owner.key_id)
    response = flask.redirect(_next_path(), 303)
    response.set_cookie(
        COOKIE, token, max_age=sessions.SECONDS, httponly=True, samesite="Lax", secure=flask.request.is_secure
    )
    return response


@routes.post("/sign-out")
def sign_out() -> ResponseReturnValue:
    with current_context().database.write() as session:
        sessions.end(session, flask.request.cookies[COOKIE])
    response = flask.redirect(flask.url_for("pages.sessions.show"), 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="Lax", secure=flask.request.is_secure)
    return response
