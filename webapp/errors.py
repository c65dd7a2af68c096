"""Errors as OpenAI answers them: JSON with message, type, param and code, all four always."""

from __future__ import annotations

import logging
import math

from flask import Flask, Response, jsonify
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import HTTPException

from batchyard.errors import BatchyardError, ConflictError, RateLimitError

log = logging.getLogger(__name__)


def answer(status: int, message: str, type_: str, param: str | None = None, code: str | None = None) -> Response:
    response = jsonify(error={"message": message, "type": type_, "param": param, "code": code})
    response.status_code = status
    return response


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
