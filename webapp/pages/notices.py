"""Notices: what a page shows once, such as a new secret, from a cookie that the page removes."""

from typing import Any

import flask
from flask.typing import ResponseReturnValue

COOKIE = "batchyard_notice"
SECONDS = 60


def redirect(path: str, notice: str) -> ResponseReturnValue:
    """Go to the page at `path`, which shows `notice` once."""
    response = flask.redirect(path, 303)
    response.set_cookie(COOKIE, notice, max_age=SECONDS, **_scope(path))
    return response


def current() -> str:
    """Return the notice of this request; empty without one. It comes from the browser, so it has to be checked."""
    return flask.request.cookies.get(COOKIE, "")


def remove(page: str, path: str) -> ResponseReturnValue:
    """Return a page at `path` that has shown its notice, if there was one."""
    response = flask.make_response(page)
    if COOKIE in flask.request.cookies:
        response.delete_cookie(COOKIE, **_scope(path))
    return response


def _scope(path: str) -> dict[str, Any]:
    return {"path": path, "httponly": True, "samesite": "Strict", "secure": flask.request.is_secure}
