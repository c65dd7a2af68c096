"""Error responses: OpenAI's JSON with message, type, param and code, all four always; an HTML page on the pages."""

from __future__ import annotations

import logging
import math

import flask
from flask import Flask, Response, jsonify
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import HTTPException

from batchyard.errors import AuthenticationError, BatchyardError, ConflictError, RateLimitError
from batchyard.statuses import ENDPOINTS
from webapp.requests import current_context

log = logging.getLogger(__name__)

_BATCHES_ONLY = (
    "This server answers requests in batches. Write each as a line with the url '{0}', upload the file to /v1/files, "
    "and make a batch of it with POST /v1/batches; or send prompts to POST /start."
)


def is_page() -> bool:
    """True for the pages, and for a browser's request that matches no route."""
    request = flask.request
    if request.url_rule is not None:
        return "pages" in request.blueprints
    return not request.path.startswith("/v1/") and "text/html" in request.headers.get("Accept", "")


def error_response(
    status: int, message: str, type_: str, param: str | None = None, code: str | None = None
) -> Response:
    if is_page():
        return _error_page(status, message)
    response = jsonify(error={"message": message, "type": type_, "param": param, "code": code})
    response.status_code = status
    return response


def _error_page(status: int, message: str) -> Response:
    if status == AuthenticationError.status:
        if flask.request.headers.get("HX-Request"):  # htmx swaps in only a part: reload the whole page
            return Response(status=status, headers={"HX-Refresh": "true"})
        path = flask.request.full_path.rstrip("?") if flask.request.method == "GET" else None
        return flask.make_response(flask.redirect(flask.url_for("pages.sessions.show", next=path), 303))
    return flask.make_response(flask.render_template("error.html", status=status, message=message), status)


def register(app: Flask) -> None:
    @app.errorhandler(BatchyardError)
    def _batchyard(error: BatchyardError) -> Response:
        if error.status >= 500:
            log.error("request failed: %s", error)
        # Where the artifact store is says the log, not the client.
        message = error.message.replace(f" {current_context().artifacts.url}", "")
        response = error_response(error.status, message, error.type, error.param, error.code)
        if isinstance(error, ConflictError):
            response.headers["x-should-retry"] = "false"  # the SDK retries a 409 by default
        if isinstance(error, RateLimitError):
            response.headers["Retry-After"] = str(math.ceil(error.retry_after))
        return response

    @app.errorhandler(HTTPException)
    def _http(error: HTTPException) -> Response:
        status = error.code or 500
        kind = "invalid_request_error" if status < 500 else "server_error"
        if flask.request.path in (*ENDPOINTS, "/v1/responses"):
            response = error_response(404, _BATCHES_ONLY.format(flask.request.path), kind, code="batches_only")
        else:
            response = error_response(status, error.description or error.name, kind)
        for name, value in error.get_headers():
            if name.lower() == "allow":
                response.headers[name] = value
        return response

    @app.errorhandler(SQLAlchemyError)
    def _database(error: SQLAlchemyError) -> Response:
        log.exception("database error")
        return error_response(500, "The server had an error; its log says more.", "server_error")

    @app.errorhandler(500)
    def _unexpected(error: Exception) -> Response:
        return error_response(500, "The server had an error; its log says more.", "server_error")
