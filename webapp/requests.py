"""What every request goes through: its id, its caller, and a body that is read as it comes."""

from __future__ import annotations

import logging
import secrets
import time
from typing import IO, Any, TypeVar, cast

import flask
from flask import Flask, Response, current_app, g
from pydantic import BaseModel, ValidationError

from batchyard.errors import AuthenticationError, RequestError, TooLargeError
from store import keys
from store.artifacts import Artifacts, Writer
from tasks.house import House

log = logging.getLogger("webapp")

MAX_JSON_BYTES = 1024 * 1024


class Upload(Writer):
    """An uploaded file on its way into the artifact store, hashed as it streams; at most `max_bytes`."""

    def __init__(self, artifacts: Artifacts, max_bytes: int) -> None:
        super().__init__(artifacts)
        self.max_bytes = max_bytes

    def write(self, data: Any) -> int:
        if self.size + len(data) > self.max_bytes:
            raise TooLargeError(
                f"The file is larger than {self.max_bytes} bytes; split it, or raise BATCHYARD_MAX_FILE_BYTES.",
                code="file_too_large",
                param="file",
            )
        return super().write(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return offset  # the form parser rewinds what it has written; nothing is read from here


class Request(flask.Request):
    """A request whose uploaded file goes straight into the artifact store."""

    upload: Upload | None = None

    def _get_file_stream(
        self,
        total_content_length: int | None,
        content_type: str | None,
        filename: str | None = None,
        content_length: int | None = None,
    ) -> IO[bytes]:
        if self.upload is not None:
            raise RequestError("Send one file.", code="invalid_value", param="file")
        house = current_house()
        self.upload = Upload(house.artifacts, house.settings.max_file_bytes)
        return cast(IO[bytes], self.upload)


def current_house() -> House:
    return cast(House, current_app.extensions["house"])


def caller() -> keys.Caller:
    """Who the request comes from, by its Bearer key. Raises AuthenticationError."""
    if "caller" not in g:
        scheme, _, key = flask.request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise AuthenticationError("You didn't provide an API key. Send it as 'Authorization: Bearer <key>'.")
        with current_house().database.read() as session:
            found = keys.authenticate(session, key.strip())
        if found is None:
            raise AuthenticationError("Incorrect API key provided. Make one with 'batchyard key create'.")
        g.caller = found
    return cast(keys.Caller, g.caller)


Parsed = TypeVar("Parsed", bound=BaseModel)


def parse_body(model: type[Parsed]) -> Parsed:
    """The JSON body as `model`. Raises RequestError, with OpenAI's codes and the param as a path."""
    if (flask.request.content_length or 0) > MAX_JSON_BYTES:
        raise TooLargeError(f"The body is larger than {MAX_JSON_BYTES} bytes.")
    flask.request.max_content_length = MAX_JSON_BYTES
    body = flask.request.get_json(force=True, silent=True)
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_json")
    return validated(model, body)


def validated(model: type[Parsed], values: dict[str, object]) -> Parsed:
    """`values` as `model`. Raises RequestError."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise RequestError(
                f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
            ) from None
        code = "invalid_type" if first["type"].endswith("_type") else "invalid_value"
        message = first["msg"].removeprefix("Value error, ")
        raise RequestError(f"Invalid value for '{param}': {message}.", code=code, param=param) from None


def register(app: Flask) -> None:
    """Give every answer its request id, log it, and drop what an upload left behind."""

    @app.before_request
    def _begin() -> None:
        g.request_id = "req_" + secrets.token_hex(12)
        g.began = time.monotonic()

    @app.after_request
    def _end(response: Response) -> Response:
        response.headers["x-request-id"] = g.request_id
        log.info(
            "%s %s",
            flask.request.method,
            flask.request.path,
            extra={
                "request_id": g.request_id,
                "status": response.status_code,
                "seconds": round(time.monotonic() - g.began, 4),
            },
        )
        return response

    @app.teardown_request
    def _discard(_error: BaseException | None) -> None:
        upload = getattr(flask.request, "upload", None)
        if upload is not None and not upload.stored:
            upload.discard()
