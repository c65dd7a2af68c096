"""/sign-in and /sign-out: a session is a random token in a cookie, which authorises the pages and never the API."""

from __future__ import annotations

import hashlib
import hmac
import re
from urllib.parse import urlsplit

import flask
from flask import Blueprint, g
from flask.typing import ResponseReturnValue

from batchyard.errors import AuthenticationError, PermissionDeniedError
from store import keys, sessions
from store.sessions import Visitor
from webapp import limits
from webapp.requests import current_context

routes = Blueprint("sessions", __name__)

COOKIE = "batchyard_session"
OPEN = ("pages.sessions.show", "pages.sessions.sign_in")
# A path of this server's: no host, and none of the characters that browsers skip or turn into a slash.
LOCAL_PATH = re.compile(r"/(?!/)[!-\[\]-~]*")


def visitor() -> Visitor | None:
    """Who has signed in, of the page that is being answered."""
    found: Visitor | None = g.get("visitor")
    return found


def csrf_token() -> str:
    """What every POST form carries in its field `csrf`: only a page of the same session can know it."""
    return hmac.new(flask.request.cookies.get(COOKIE, "").encode(), b"csrf", hashlib.sha256).hexdigest()


def admit() -> None:
    """Resume the session of a request for a page, as its `caller()`. Called before every page.

    Raises:
        AuthenticationError: there is no session.
        PermissionDeniedError: a POST that does not come from a form of this session's pages.
        RateLimitError.
    """
    posted = flask.request.method not in ("GET", "HEAD", "OPTIONS")
    if posted:
        _check_origin()
    if flask.request.endpoint in OPEN:
        return
    token = flask.request.cookies.get(COOKIE, "")
    with current_context().database.read() as session:
        found = sessions.find(session, token) if token else None
    if found is None:
        raise AuthenticationError("Sign in to see this page.")
    g.visitor, g.caller = found, found.caller
    limits.count_request(current_context(), found.caller.key_id)
    if posted and not hmac.compare_digest(flask.request.form.get("csrf", "").encode(), csrf_token().encode()):
        raise PermissionDeniedError("This form is of another session; load its page again, then send it.")


def _check_origin() -> None:
    """Raises PermissionDeniedError for a request that another site's page has sent."""
    site, origin = flask.request.headers.get("Sec-Fetch-Site"), flask.request.headers.get("Origin")
    if site is None and origin is not None:  # a browser that does not say it, or a server without TLS
        site = "same-origin" if urlsplit(origin).netloc == flask.request.host else "cross-site"
    if site not in (None, "same-origin"):
        raise PermissionDeniedError("This form was sent by another site; open the page here, then send it.")


def _wanted() -> str:
    """The page to go to after signing in."""
    asked = flask.request.values.get("next", "")
    return asked if LOCAL_PATH.fullmatch(asked) else "/"


@routes.get("/sign-in")
def show() -> ResponseReturnValue:
    return flask.render_template("sign_in.html", next=_wanted())


@routes.post("/sign-in")
def sign_in() -> ResponseReturnValue:
    context = current_context()
    address = flask.request.remote_addr or ""
    limits.check_sign_in(address)
    with context.database.read() as session:
        found = keys.authenticate(session, flask.request.form.get("key", "").strip())
    if found is None:
        limits.count_failed_sign_in(address)
        page = flask.render_template("sign_in.html", next=_wanted(), wrong=True)
        return page, AuthenticationError.status
    with context.database.write() as session:
        token = sessions.create(session, found.key_id)
    response = flask.redirect(_wanted(), 303)
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
