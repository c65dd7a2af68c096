"""Errors as OpenAI answers them: JSON with message, type, param and code, all four always; on a web page, a page."""

from __future__ import annotations

import logging
import math

import flask
from flask import Flask, Response, jsonify
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import HTTPException

from batchyard.errors import AuthenticationError, BatchyardError, ConflictError, RateLimitError

log = logging.getLogger(__name__)


def is_page() -> bool:
    """Whether a person asks: for one of the pages, or with a browser for something that is not there."""
    request = flask.request
    if request.url_rule is not None:
        return "pages" in request.blueprints
    return not request.path.startswith("/v1/") and "text/html" in request.headers.get("Accept", "")


def answer(status: int, message: str, type_: str, param: str | None = None, code: str | None = None) -> Response:
    if is_page():
        return _page(status, message)
    response = jsonify(error={"message": message, "type": type_, "param": param, "code": code})
    response.status_code = status
    return response


def _page(status: int, message: str) -> Response:
    if status == AuthenticationError.status:
        if flask.request.headers.get("HX-Request"):  # a part of a page whose session has ended: the page has to go
            return Response(status=status, headers={"HX-Refresh": "true"})
        asked = flask.request.full_path.rstrip("?") if flask.request.method == "GET" else None
        return flask.make_response(flask.redirect(flask.url_for("pages.sessions.show", next=asked), 303))
    return flask.make_response(flask.render_template("error.html", status=status, message=message), status)


def register(app: Flask) -> None:
    @app.errorhandler(BatchyardError)
    def _ours(error: BatchyardError) -> Response:
        if error.status >= 500:
            log.error("request failed: %s", error)
        response = answer(error.status, error.message, error.type, error.param, error.code)
        if isinstance(error, ConflictError):
            response.headers["x-should-retry"] = "false"  # the SDK tries a 409 again otherwise
        if isinstance(error, RateLimitError):
            response.headers["Retry-After"] = str(math.ceil(error.retry_after))
        return response

    @app.errorhandler(HTTPException)
    def _http(error: HTTPException) -> Response:
        status = error.code or 500
        kind = "invalid_request_error" if status < 500 else "server_error"
        response = answer(status, error.description or error.name, kind)
        for name, value in error.get_headers():
            if name.lower() == "allow":
                response.headers[name] = value
        return response

    @app.errorhandler(SQLAlchemyError)
    def _database(error: SQLAlchemyError) -> Response:
        log.exception("database error")
        return answer(500, "The server had an error; its log says more.", "server_error")

    @app.errorhandler(500)
    def _unexpected(error: Exception) -> Response:
        return answer(500, "The server had an error; its log says more.", "server_error")
