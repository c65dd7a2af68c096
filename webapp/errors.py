"""Error responses: OpenAI's JSON with message, type, param and code, all four always; an HTML page on the pages."""

import logging
import math

import flask
from flask import Flask, Response, g, jsonify
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge

from batchyard.endpoints.catalog import PATHS
from batchyard.errors import AuthenticationError, BatchyardError, ConflictError, RateLimitError, TooSlowError
from batchyard.wording import MAX_NAME, cut, with_code
from webapp.anthropic import errors as anthropic_errors
from webapp.requests import current_context

log = logging.getLogger(__name__)

MAX_FORM_PARTS = 200
_BEHIND_GATEWAY = (
    "This is the web app behind the gateway, which answers live requests: send '{0}' to the gateway's address, or "
    "batches to POST /v1/batches."
)


def is_page() -> bool:
    """True for the pages, and for a browser's request that matches no route."""
    if flask.request.url_rule is not None:
        return "pages" in flask.request.blueprints
    return wants_page()


def wants_page() -> bool:
    """True for a browser's request outside the API."""
    return not flask.request.path.startswith("/v1/") and "text/html" in flask.request.headers.get("Accept", "")


def error_response(
    status: int, message: str, type_: str, param: str | None = None, code: str | None = None, page: bool | None = None
) -> Response:
    """Return an error, as a page or as an object. `page` of None: as the request asks."""
    if is_page() if page is None else page:
        return _error_page(status, message)
    message = with_code(message, code)
    # A client that adds /v1 itself may have it in its base URL, too.
    if anthropic_errors.is_spoken(flask.request.path.replace("/v1/v1/", "/v1/", 1)):
        response = jsonify(anthropic_errors.of_status(status, message, g.request_id).model_dump())
    else:
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


def _unknown_url() -> Response:
    """Return the answer to a request that matches no route, or a page instead of the API."""
    request = flask.request
    path = cut(request.path, MAX_NAME)
    if (is_page() or wants_page()) and not _sends_key():
        return _error_page(404, f"There is no page at {path}.")
    code = "unknown_url"
    if request.path in PATHS:
        if request.method != "POST":
            message = f"Not allowed to {cut(request.method, MAX_NAME)} {path}: send a POST."
            return error_response(405, message, "invalid_request_error", None, "method_not_allowed", page=False)
        code, message = "gateway_passed_by", _BEHIND_GATEWAY.format(path)
    elif request.path.startswith("/v1/v1/"):
        base = request.host_url.rstrip("/")
        spoken = anthropic_errors.is_spoken(request.path[3:]) or "anthropic-version" in request.headers
        base += "" if spoken else "/v1"
        message = f"Unknown request URL: {request.method} {path}. The client adds /v1 itself: its base URL is {base}"
        message += ", without /v1." if spoken else "."
    elif _served_below_v1():
        message = f"Unknown request URL: {request.method} {path}. base_url must end in /v1: {request.host_url}v1"
    else:  # what the API has, live requests too: each first name below /v1, and what stands beside it
        paths = [*PATHS, *(rule.rule for rule in flask.current_app.url_map.iter_rules())]
        below = {"/".join(path.split("/")[:3]) for path in paths if path.startswith("/v1/")}
        served = ", ".join([*sorted(below), "/start", "/openapi.json"])
        message = f"Unknown request URL: {request.method} {path}. This server has: {served}."
    return error_response(404, message, "invalid_request_error", None, code, page=False)


def _page_of_action() -> str:
    """Return the address of the page whose form is sent to the request's address: the nearest one above it."""
    adapter = flask.current_app.create_url_adapter(flask.request)
    assert adapter is not None  # there is a request
    path = flask.request.path
    endpoint, values = adapter.match(path, method="POST")
    if endpoint == "start.start":
        return flask.url_for("pages.new.show")
    while path := path.rpartition("/")[0]:
        try:
            page, named = adapter.match(path, method="GET")
        except HTTPException:
            continue
        if named.items() <= values.items():
            return flask.url_for(page, **named)
    return flask.url_for("pages.overview.show")


def _sends_key() -> bool:
    """True for a client of the API that asks for no page."""
    headers = flask.request.headers
    return "Authorization" in headers and "text/html" not in headers.get("Accept", "")


def _served_below_v1() -> bool:
    """True if the request's path is one of the API's without its /v1."""
    path = flask.request.path
    if path.startswith("/v1/") or f"/v1{path}" in PATHS:
        return not path.startswith("/v1/")
    try:
        flask.current_app.url_map.bind("").match(f"/v1{path}", method=flask.request.method)
    except HTTPException as error:
        return isinstance(error, MethodNotAllowed)
    return True


def register(app: Flask) -> None:
    @app.errorhandler(BatchyardError)
    def _batchyard(error: BatchyardError) -> Response:
        if error.status >= 500:
            log.error("request failed: %s", error)
        if is_page() and isinstance(error, AuthenticationError) and _sends_key():
            return _unknown_url()
        message = current_context().for_clients(error.message)
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
        wrong_method = isinstance(error, MethodNotAllowed)
        if isinstance(error, NotFound) or (wrong_method and not is_page() and _served_below_v1()):
            return _unknown_url()
        if isinstance(error, MethodNotAllowed):
            if flask.request.method in ("GET", "HEAD") and wants_page() and "POST" in (error.valid_methods or ()):
                return flask.make_response(flask.redirect(_page_of_action(), 303))
            allowed = ", ".join(sorted(set(error.valid_methods or ()) - {"HEAD", "OPTIONS"}))
            message = f"Not allowed to {flask.request.method} on {flask.request.path}; allowed: {allowed}."
        elif isinstance(error, RequestEntityTooLarge):
            message = f"The request has more bytes than this route takes, or its form more than {MAX_FORM_PARTS} parts."
        elif error.description and error.description != type(error).description:
            message = error.description
        else:  # the framework's words are for people who type addresses
            message = f"{error.name}."
        response = error_response(status, message, kind)
        for name, value in error.get_headers():
            if name.lower() == "allow":
                response.headers[name] = value
        return response

    @app.errorhandler(BlockingIOError)
    def _silent(error: BlockingIOError) -> Response:
        slow = TooSlowError("The rest of the request did not come in time; send it again.")
        return error_response(slow.status, slow.message, slow.type, None, slow.code)

    @app.errorhandler(SQLAlchemyError)
    @app.errorhandler(500)
    def _unexpected(error: Exception) -> Response:
        if isinstance(error, SQLAlchemyError):
            log.exception("database error")
        return error_response(500, "The server had an error; its log says more.", "server_error")
