"""Parts common to all requests: the id, the caller, parameters, and uploads that stream to the store."""

import contextlib
import functools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, TypeVar, cast

import flask
import orjson
from flask import Flask, Response, current_app, g
from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser
from werkzeug.utils import cached_property

from batchyard import json_lines
from batchyard.errors import AuthenticationError, PermissionDeniedError, RequestError, TooLargeError, value_code
from batchyard.request_lines import inline
from batchyard.request_lines.inline import InlineBody, Line
from batchyard.schema_words import invalid_values
from batchyard.wording import MAX_NAME, cut, unsupported
from store import files, keys
from store.artifacts import Artifacts, ArtifactWriter
from tasks.context import AppContext
from webapp import encodings, limits
from webapp.access.api_keys import WRONG_KEY, key_of, note_use
from webapp.wire.lists import QueryParams

log = logging.getLogger("webapp")

MAX_JSON_BYTES = 1024 * 1024
# Of a body that holds prompts. Each thread of the process may parse one, which takes several times its size.
MAX_BULK_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 200
"""Levels of a JSON body: beyond some hundreds Python neither copies nor writes a value."""
# Closing a socket with unread input sends RST: the client may lose the response, or its next request.
DRAIN_BYTES = 16 * 1024 * 1024
DRAIN_SECONDS = 2.0
DRAIN_PAUSE = 0.3
TOO_LARGE = "split it, or raise BATCHYARD_MAX_FILE_BYTES"
"""What a client does about a file that is too large."""


Item = TypeVar("Item")


class UploadLimit(NamedTuple):
    """The most bytes of a `noun` that the parameter `param` uploads, and what a client does about more."""

    bytes: int
    noun: str
    remedy: str
    param: str


class Upload(ArtifactWriter):
    """A writer that streams an uploaded file within a limit to the artifact store and hashes it.

    Calls `count` with the number of new bytes every limits.STEP_BYTES; it raises RateLimitError to stop the upload.
    `lines` counts the lines of inline requests.
    """

    lines = 0

    def __init__(
        self, artifacts: Artifacts, limit: UploadLimit, room: files.Room, count: Callable[[int], None]
    ) -> None:
        super().__init__(artifacts)
        self._limit = limit
        self._room = room
        self._count = count
        self._uncounted = 0

    def write(self, data: Any) -> int:
        if self.size + len(data) > self._limit.bytes:
            message = f"The {self._limit.noun} is larger than {self._limit.bytes} bytes; {self._limit.remedy}."
            raise TooLargeError(message, code="file_too_large", param=self._limit.param)
        self._room.check(self.size + len(data))
        self._uncounted += len(data)
        if self._uncounted >= limits.STEP_BYTES:
            self._count_bytes()
        return super().write(data)

    def commit(self) -> None:
        self._count_bytes()
        super().commit()

    def _count_bytes(self) -> None:
        if self._uncounted:
            self._count(self._uncounted)
            self._uncounted = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        return offset  # the form parser rewinds the file, and nothing reads it


class StreamedRequest(flask.Request):
    """A Flask request whose uploaded file streams to the artifact store.

    A route that takes something else than a file sets `upload_limit` before it reads the form.
    """

    upload: Upload | None = None
    upload_limit: UploadLimit | None = None

    def make_form_data_parser(self) -> FormDataParser:
        parser = super().make_form_data_parser()
        parser.silent = False
        return parser

    def _load_form_data(self) -> None:
        try:
            super()._load_form_data()
        except ValueError as error:
            reason = "the header of a part is not UTF-8" if isinstance(error, UnicodeError) else str(error)
            raise RequestError(f"The form cannot be read: {reason}.", code="invalid_form") from error

    @cached_property
    def stream(self) -> IO[bytes]:
        """The body, which nobody reads before it is known who sends it: a thread would wait for it. Raises as `caller`.

        A page's visitor is known by now, but for the forms that say who somebody is.
        """
        if "caller" not in g and self.blueprint != "pages.sessions":
            caller()
        return super().stream

    def _get_file_stream(
        self,
        total_content_length: int | None,
        content_type: str | None,
        filename: str | None = None,
        content_length: int | None = None,
    ) -> IO[bytes]:
        if self.upload is not None:
            param = "file" if self.upload_limit is None else self.upload_limit.param
            raise RequestError("Send one file.", code="invalid_value", param=param)
        return cast(IO[bytes], self.begin_upload("file"))

    def begin_upload(self, param: str) -> Upload:
        """Return a writer for what the parameter `param` holds. It is discarded with the request if not committed."""
        context, owner = current_context(), caller()
        count = functools.partial(limits.count_bytes, context, owner.key_id)
        with context.database.read() as session:
            room = files.room(session, owner.project_id)
        # All else in the body, other fields and the headers of parts, is smaller than MAX_JSON_BYTES.
        room.check(max(0, (flask.request.content_length or 0) - MAX_JSON_BYTES))
        limit = self.upload_limit or UploadLimit(context.settings.max_file_bytes, "file", TOO_LARGE, param)
        self.upload = Upload(context.artifacts, limit, room, count)
        return self.upload


def current_context() -> AppContext:
    """Return the context with the models that were in force when the request first needed it."""
    if "context" not in g:
        g.context = cast(AppContext, current_app.extensions["context"]).fresh()
    return cast(AppContext, g.context)


def caller() -> keys.Principal:
    """Return the caller of the request by its key. Raises AuthenticationError, RateLimitError.

    The request counts once against the key's rate limit.
    """
    if "caller" not in g:
        headers = flask.request.headers
        key = key_of(headers.get("Authorization", ""), headers.get("x-api-key", ""))
        with current_context().database.read() as session:
            owner = keys.authenticate(session, key)
        if owner is None:
            raise AuthenticationError(WRONG_KEY)
        admit(owner)
    return cast(keys.Principal, g.caller)


def admit(owner: keys.Principal) -> None:
    """Make `owner` the caller, count the request against the key's limit, and note its use. Raises RateLimitError."""
    g.caller = owner
    limits.count_request(current_context(), owner.key_id)
    if owner.unnoted:
        after_response(functools.partial(note_use, current_context(), owner.key_id))


@contextlib.contextmanager
def reading() -> Iterator[tuple[Session, keys.Principal]]:
    """Give a block a reading transaction and the caller. Raises as `caller`."""
    owner = caller()
    with current_context().database.read() as session:
        yield session, owner


@contextlib.contextmanager
def writing(*, serial: bool = False) -> Iterator[tuple[Session, keys.Principal]]:
    """Give a block a writing transaction and the caller. Raises as `caller`."""
    owner = caller()
    with current_context().database.write(serial=serial) as session:
        yield session, owner


def listed(
    page: Callable[..., tuple[Sequence[Item], bool]], model: type[BaseModel], *scope: Any
) -> tuple[Sequence[Item], bool]:
    """Return the page that the query asks for, and whether more follow.

    `page` reads it, of a transaction, the scope and the parameters; `model` is that of the query.
    """
    params = query(model).model_dump()
    with current_context().database.read() as session:
        return page(session, *scope, **params)


def administrator() -> keys.Principal:
    owner = caller()
    if not owner.admin:
        raise PermissionDeniedError("This needs an admin key; make one with 'batchyard key create --admin'.")
    return owner


def whole_body(most: int, too_large: str) -> bytes:
    """Return the request's body. Raises TooLargeError, with this message, if it has more than `most` bytes."""
    request = flask.request
    request.max_content_length = most + 1  # a body of unknown length is cut there
    try:
        raw = request.get_data(cache=False)
    except RequestEntityTooLarge:
        raise TooLargeError(too_large) from None
    if len(raw) > most:
        raise TooLargeError(too_large)
    return raw


Parsed = TypeVar("Parsed", bound=BaseModel)


def parse_body(model: type[Parsed], *, bulk: bool = False, optional: bool = False) -> Parsed:
    """Parse the JSON body as `model`.

    An empty `optional` body is `{}`; the bytes of a `bulk` one count as uploaded.

    Raises RequestError: with OpenAI's code, and the parameter's path as `param`; TooLargeError: the body is larger than
    MAX_JSON_BYTES, a `bulk` one than MAX_BULK_BYTES; RateLimitError.
    """
    most, remedy = (MAX_BULK_BYTES, "; send its prompts as a file") if bulk else (MAX_JSON_BYTES, "")
    raw = whole_body(most, f"The body is larger than {most} bytes{remedy}.")
    if bulk:
        limits.count_bytes(current_context(), caller().key_id, len(raw))
    if not raw and optional:
        raw = b"{}"
    try:
        body = json_lines.read(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body is not valid JSON: {error.msg}.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_json")
    return validated(model, body)


def read_inline(line: Line) -> tuple[dict[str, Any], Upload | None]:
    """Read a JSON body that may have a list `requests`, while that is stored as lines.

    Return the rest, and the lines, which are not committed yet; None if there are no requests. Raises RequestError: the
    body is not valid JSON, or `line` refuses a request; TooLargeError, RateLimitError, UnavailableError.
    """
    settings, request = current_context().settings, cast(StreamedRequest, flask.request)
    request.max_content_length = settings.max_file_bytes + MAX_JSON_BYTES
    upload = None
    try:
        body = InlineBody(
            request.stream,
            max_requests=settings.max_requests,
            max_request_bytes=settings.max_line_bytes,
            max_rest_bytes=MAX_JSON_BYTES,
        )
        for one in body.lines(line):
            if upload is None:
                upload = request.begin_upload(inline.KEY)
            upload.write(one)
            upload.lines += 1
    except RequestEntityTooLarge:
        raise TooLargeError(
            f"The body is larger than {request.max_content_length} bytes; split it, or raise BATCHYARD_MAX_FILE_BYTES."
        ) from None
    return body.rest, upload


def query(model: type[Parsed]) -> Parsed:
    """Parse an authenticated request's query as `model`. Raises RequestError, and as `caller`."""
    caller()
    return validated(model, dict(_single(flask.request.args)))


def form(model: type[Parsed]) -> Parsed:
    """Parse the form fields as `model`. `a[b]` is field b of a, as OpenAI's client writes it. Raises RequestError."""
    fields: dict[str, Any] = {}
    for name, value in _single(flask.request.form):
        outer, bracket, inner = name.partition("[")
        if bracket:
            nested = fields.setdefault(outer, {})
            if isinstance(nested, dict):
                nested[inner.rstrip("]")] = value
        else:
            fields[name] = value
    return validated(model, fields)


def _single(fields: MultiDict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield names and values. Raises RequestError if a name occurs twice."""
    for name, values in fields.lists():
        if len(values) > 1:
            raise RequestError(f"'{name[:MAX_NAME]}' is given twice.", code="invalid_value", param=name[:MAX_NAME])
        yield name, values[0]


def validated(model: type[Parsed], values: dict[str, Any]) -> Parsed:
    """Validate `values` as `model`. Raises RequestError for the first error."""
    with_nul = _path_of_nul(values)
    if with_nul is not None:
        param = cut(with_nul, MAX_NAME)
        raise RequestError(f"'{param}' has a NUL character; leave it out.", code="invalid_value", param=param)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        schema: Mapping[str, Any] = {}
        with contextlib.suppress(PydanticInvalidForJsonSchema):
            schema = model.model_json_schema()
        first = invalid_values(error, values, schema)[0]
    param = cut(first.place, MAX_NAME)
    if first.kind == "missing":
        raise RequestError(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)
    if first.kind == "extra_forbidden":
        hint = f" Did you mean '{first.near}'?" if first.near else ""
        hint += f" Available: {', '.join(model.model_fields)}." if issubclass(model, QueryParams) else ""
        raise RequestError(f"Unknown parameter: '{param}'.{hint}", code="unknown_parameter", param=param)
    code = value_code(first.kind, first.value)
    if first.choices:
        raise RequestError(unsupported(param, first.value, first.choices), code=code, param=param)
    raise RequestError(f"Invalid value for '{param}': {first.reason}.", code=code, param=param)


def _path_of_nul(values: dict[str, Any]) -> str | None:
    """Return the path of a text with a NUL character, or of an object with one in a key, or None.

    PostgreSQL's texts cannot hold it. Raises RequestError: the values are nested so deeply that they cannot be shown.
    """
    pending: list[tuple[tuple[str, ...], Any]] = [((), values)]  # no recursion: clients nest as deep as they like
    while pending:
        path, value = pending.pop()
        if len(path) > MAX_DEPTH:
            message = f"'{path[0]}' is nested more than {MAX_DEPTH} levels deep."
            raise RequestError(message, code="invalid_value", param=path[0])
        texts = value if isinstance(value, dict) else (value,) if isinstance(value, str) else ()
        if any("\0" in text for text in texts):
            return ".".join(path)
        if isinstance(value, dict | list):
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            pending += [((*path, str(key)), entry) for key, entry in entries]
    return None


def after_response(call: Callable[[], None]) -> None:
    """Call this when the response has been sent. Nothing that a client relies on may depend on it.

    A message to a worker that is lost, for one, is sent again by housekeeping.
    """

    @flask.after_this_request
    def _after(response: Response) -> Response:
        response.call_on_close(call)
        return response


def _drain() -> None:
    """Read the rest of a refused request's body: DRAIN_BYTES in DRAIN_SECONDS at most, and no longer than it comes."""
    environ = flask.request.environ
    connection: socket.socket | None = environ.get("gunicorn.socket")
    if connection is None or (flask.request.content_length or 0) > DRAIN_BYTES:
        return
    timeout, remaining = connection.gettimeout(), DRAIN_BYTES
    # The server reads until it has as many bytes as it was asked for, however slowly they come.
    deadline = threading.Timer(DRAIN_SECONDS, _stop_reading, [connection])
    deadline.start()
    connection.settimeout(DRAIN_PAUSE)
    try:
        while remaining > 0 and (size := len(environ["wsgi.input"].read(min(remaining, 65536)))):
            remaining -= size
    except (OSError, RequestError) as error:
        log.debug("request body not read: %s", error)
        _stop_reading(connection)  # the server would wait for the rest, too
    finally:
        deadline.cancel()
        connection.settimeout(timeout)


def _stop_reading(connection: socket.socket) -> None:
    """Have whoever reads see the end of what a client sends."""
    with contextlib.suppress(OSError):  # the client has gone
        connection.shutdown(socket.SHUT_RD)


def register(app: Flask) -> None:
    """Add the request id to every response, log it, and discard an upload that was not committed."""

    @app.before_request
    def _begin() -> None:
        g.request_id = "req_" + secrets.token_hex(12)
        g.began = time.monotonic()
        encodings.encoding_of(flask.request.content_encoding)  # what was decompressed has none any more

    @app.after_request
    def _end(response: Response) -> Response:
        if response.status_code >= 400:
            _drain()
        response.headers["x-request-id"] = g.request_id
        details = {"status": response.status_code, "seconds": round(time.monotonic() - g.began, 4)}
        log.info("%s %s", flask.request.method, flask.request.path, extra={"request_id": g.request_id, **details})
        return response

    @app.teardown_request
    def _discard(_error: BaseException | None) -> None:
        upload = getattr(flask.request, "upload", None)
        if upload is not None and not upload.stored:
            upload.discard()
