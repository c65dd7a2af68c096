"""/sign-in and /sign-out: with an API key, by an OpenID provider, or by the headers of a trusted proxy.

A session is a random token in a cookie that gives access to the pages, never to the API. Whom a proxy names has none.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import flask
from flask import Blueprint, g
from flask.typing import ResponseReturnValue
from werkzeug.wrappers import Response

from batchyard.errors import AuthenticationError, NotFoundError, PermissionDeniedError, UnavailableError
from store import keys, sessions
from store.sessions import Visitor
from webapp import limits
from webapp.access import audit, identities
from webapp.access.identities import Identity
from webapp.errors import wants_page
from webapp.requests import admit as admit_caller
from webapp.requests import current_context

if TYPE_CHECKING:
    from webapp.access.oidc import Provider

routes = Blueprint("sessions", __name__)

COOKIE = "batchyard_session"
PROJECT_COOKIE = "batchyard_project"
"""Which of their projects a user whom a proxy names has chosen."""
PROJECT_SECONDS = 365 * 86400
OPEN = tuple(f"pages.sessions.{name}" for name in ("show", "sign_in", "begin_oidc", "finish_oidc"))
WRONG_KEY = "No key like this is in use. Check it, or ask an administrator for a new one."
# A path on this server: no host, and no character that browsers skip or turn into a slash.
LOCAL_PATH = re.compile(r"/(?!/)[!-\[\]-~]*")


def visitor() -> Visitor | None:
    current: Visitor | None = g.get("visitor")
    return current


def identity() -> Identity | None:
    """Return whom a trusted proxy has named in this request; None if none has."""
    current: Identity | None = g.get("identity")
    return current


def csrf_token() -> str:
    """Return the value of field `csrf` in every POST form. Only pages of the same session know it."""
    token = g.get("new_token") or flask.request.cookies.get(COOKIE, "")
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


def admit() -> None:
    """Find out who asks for a page; `caller()` then returns that caller. Runs before every page.

    Raises AuthenticationError: nobody has signed in; PermissionDeniedError: a POST did not come from a form of this
    session's pages, or the headers that name a user are not a trusted proxy's; RateLimitError.
    """
    posted = flask.request.method not in ("GET", "HEAD", "OPTIONS")
    site, origin = flask.request.headers.get("Sec-Fetch-Site"), flask.request.headers.get("Origin")
    if site is None and origin is not None:  # an old browser, or a server without TLS
        site = "same-origin" if urlsplit(origin).netloc == flask.request.host else "cross-site"
    if posted and site not in (None, "same-origin"):
        raise PermissionDeniedError("This form was sent by another site; open the page here, then send it.")
    if flask.request.endpoint in OPEN:
        return
    current = _resume()
    if current is None:
        raise AuthenticationError("Sign in to see this page.")
    g.visitor = current
    admit_caller(current.caller)
    if identity() is not None and COOKIE not in flask.request.cookies:
        _bind_forms(current)
    if posted and not hmac.compare_digest(flask.request.form.get("csrf", "").encode(), csrf_token().encode()):
        raise PermissionDeniedError("This form belongs to another session; reload its page, then send it.")


def recognise() -> None:
    """Show the navigation to a visitor who has signed in also where nobody has to: at an unknown address, at /docs."""
    if "pages" not in flask.request.blueprints and wants_page():
        with contextlib.suppress(UnavailableError, PermissionDeniedError):
            g.visitor = _resume()


def _resume() -> Visitor | None:
    """Return who asks: whom a trusted proxy names, or else whose session this is. Raises PermissionDeniedError."""
    context = current_context()
    named = identities.named_user(context.settings)
    if named is not None:
        g.identity = named
        chosen = flask.request.cookies.get(PROJECT_COOKIE)
        return identities.enter(context, named, chosen if chosen in named.projects else named.projects[0])
    token = flask.request.cookies.get(COOKIE, "")
    if not token:
        return None
    with context.database.read() as session:
        return sessions.find(session, token)


def _bind_forms(current: Visitor) -> None:
    """Give the browser of a user whom a proxy names a token for its forms. It opens no session."""
    audit.note("sign_in.header", current.caller)
    g.new_token = token = secrets.token_urlsafe(32)

    @flask.after_this_request
    def _set(response: flask.Response) -> flask.Response:
        _set_cookie(response, COOKIE, token, sessions.SECONDS)
        return response


def _set_cookie(response: Response, name: str, value: str, seconds: int) -> None:
    response.set_cookie(name, value, max_age=seconds, httponly=True, samesite="Lax", secure=flask.request.is_secure)


def _next_path() -> str:
    path = flask.request.values.get("next", "")
    return path if LOCAL_PATH.fullmatch(path) else "/"


def _page(problem: str | None = None) -> str:
    """Return the page that signs in. `problem`: why the last attempt has failed."""
    oidc = "oidc" in flask.current_app.extensions
    return flask.render_template("sign_in.html", next=_next_path(), problem=problem, oidc=oidc)


@routes.get("/sign-in")
def show() -> ResponseReturnValue:
    return _page()


@routes.post("/sign-in")
def sign_in() -> ResponseReturnValue:
    context = current_context()
    with context.database.read() as session:
        owner = keys.authenticate(session, flask.request.form.get("key", "").strip())
    audit.note("sign_in.key", owner)
    if owner is None:
        limits.count_failed_sign_in(flask.request.remote_addr or "")
        return _page(WRONG_KEY), AuthenticationError.status
    return _open_session(owner.key_id, _next_path())


def _open_session(key_id: str, path: str) -> Response:
    with current_context().database.write() as session:
        token = sessions.create(session, key_id)
    response = flask.redirect(path, 303)
    _set_cookie(response, COOKIE, token, sessions.SECONDS)
    return response


@routes.get("/sign-in/oidc")
def begin_oidc() -> ResponseReturnValue:
    """Send the browser to the OpenID provider. `project`: which one to enter, of several."""
    response = _provider().begin(flask.url_for("pages.sessions.finish_oidc", _external=True))
    flask.session["next"] = _next_path()
    flask.session["project"] = flask.request.args.get("project", "")
    return response


@routes.get("/sign-in/oidc/callback")
def finish_oidc() -> ResponseReturnValue:
    """Sign in whom the provider has authenticated, or ask which of several projects to enter."""
    provider = _provider()
    path, project = flask.session.get("next", "/"), flask.session.get("project", "")
    try:
        signed_in = provider.finish()
        if not project and len(signed_in.projects) > 1:
            return flask.render_template("choose_project.html", projects=signed_in.projects, next=path)
        visitor = identities.enter(current_context(), signed_in, project or signed_in.projects[0])
    except (AuthenticationError, PermissionDeniedError) as error:
        audit.note("sign_in.oidc")
        limits.count_failed_sign_in(flask.request.remote_addr or "")
        return _page(error.message), error.status
    audit.note("sign_in.oidc", visitor.caller)
    return _open_session(visitor.caller.key_id, path)


def _provider() -> Provider:
    provider: Provider | None = flask.current_app.extensions.get("oidc")
    if provider is None:
        raise NotFoundError("This deployment has no OpenID provider (BATCHYARD_OIDC_ISSUER).")
    return provider


def switch_url() -> str | None:
    """Return the address of the page where the visitor can enter another of their projects; None if there is none."""
    current, named = visitor(), identity()
    if named is not None:
        return flask.url_for("pages.sessions.show_projects") if len(named.projects) > 1 else None
    is_user = current is not None and current.caller.key_id.startswith(sessions.USER)
    return flask.url_for("pages.sessions.begin_oidc") if is_user and "oidc" in flask.current_app.extensions else None


@routes.get("/sign-in/project")
def show_projects() -> ResponseReturnValue:
    named = identity()
    return flask.render_template("choose_project.html", projects=named.projects if named else (), next="/")


@routes.post("/sign-in/project")
def choose_project() -> ResponseReturnValue:
    """Have a user whom a proxy names enter another of their projects from now on."""
    response = flask.redirect("/", 303)
    _set_cookie(response, PROJECT_COOKIE, flask.request.form.get("project", ""), PROJECT_SECONDS)
    return response


@routes.post("/sign-out")
def sign_out() -> ResponseReturnValue:
    with current_context().database.write() as session:
        sessions.end(session, flask.request.cookies[COOKIE])
    audit.note("sign_out", g.caller)
    path = current_context().settings.sign_out_path or flask.url_for("pages.sessions.show")
    response = flask.redirect(path, 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="Lax", secure=flask.request.is_secure)
    return response
