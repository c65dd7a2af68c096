"""/v1/messages/batches: Anthropic's Message Batches. `msgbatch_X` is `batch_X` of /v1/batches, of /v1/messages."""

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime

import flask
from flask import Blueprint, Response, g, url_for

from batchyard import json_lines
from batchyard.endpoints.catalog import MESSAGES
from batchyard.errors import NotFoundError, RequestError
from batchyard.request_lines.inline import KEY
from batchyard.statuses import TERMINAL
from batchyard.wording import MAX_NAME, cut
from store import batches
from store.batches import BATCHES
from store.records import Batch
from tasks.finishing import erasure
from tasks.intake import submission
from tasks.intake.submission import Draft, NewInput
from webapp import idempotency, work
from webapp.anthropic import errors, wire
from webapp.anthropic import results as results_of
from webapp.batches import create_once, record_of
from webapp.document import operation
from webapp.files import missing
from webapp.requests import caller, current_context, query, read_inline, validated
from webapp.wire.fields import Idempotent

routes = Blueprint("message_batches", __name__)

_PREFIX, _STORED_PREFIX = "msgbatch_", "batch_"
_FILE_NAME = "message_batch.jsonl"
_POST, _URL = json_lines.dumps("POST"), json_lines.dumps(MESSAGES.path)


@routes.after_app_request
def _name_request(response: Response) -> Response:
    """Add the header in which Anthropic's clients look for the id of a request."""
    if errors.is_spoken(flask.request.path):
        response.headers["request-id"] = g.request_id
    return response


def to_wire(batch: Batch) -> wire.MessageBatch:
    ended, cancelling = batch.status in TERMINAL, batch.status == "cancelling"
    id_ = _PREFIX + batch.id.removeprefix(_STORED_PREFIX)
    return wire.MessageBatch(
        id=id_,
        processing_status="ended" if ended else "canceling" if cancelling else "in_progress",
        request_counts=_counts(batch),
        created_at=datetime.fromtimestamp(batch.created_at, UTC),
        expires_at=datetime.fromtimestamp(batch.expires_at, UTC),
        ended_at=_time(batch.completed_at or batch.expired_at or batch.cancelled_at or batch.failed_at),
        cancel_initiated_at=_time(batch.cancelling_at),
        archived_at=None,
        results_url=url_for("message_batches.results", message_batch_id=id_, _external=True) if ended else None,
    )


def _counts(batch: Batch) -> wire.MessageBatchRequestCounts:
    none = wire.MessageBatchRequestCounts(processing=0, succeeded=0, errored=0, canceled=0, expired=0)
    if batch.status not in TERMINAL:
        return none.model_copy(update={"processing": batch.total})
    if results_of.is_unmerged(batch):
        return none.model_copy(update={"errored" if batch.status == "failed" else "canceled": batch.total})
    return wire.MessageBatchRequestCounts(
        processing=0,
        succeeded=batch.completed,
        errored=batch.failed,
        canceled=batch.cancelled,
        expired=batch.expired,
    )


def _time(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _line(place: str, request: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the line of a request, whose `params` validation checks. Raises RequestError."""
    for name, first, kind in (("custom_id", b'"', "a text"), ("params", b"{", "an object")):
        param = f"{place}.{name}"
        if name not in request:
            raise missing(param)
        if not request[name].startswith(first):
            raise RequestError(f"Invalid value for '{param}': it must be {kind}.", code="invalid_type", param=param)
    for name in request.keys() - {"custom_id", "params"}:
        param = cut(f"{place}.{name}", MAX_NAME)
        raise RequestError(f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)
    return {"custom_id": request["custom_id"], "method": _POST, "url": _URL, "body": request["params"]}


@routes.post("/v1/messages/batches")
@operation(
    wire.MessageBatch,
    json=wire.CreateMessageBatch,
    headers=Idempotent,
    refusals=(403, 409, 413),
    error=wire.MessageError,
)
def create() -> wire.MessageBatch:
    """Make a batch of the requests in the body. Each is checked when the batch runs, and has its result in any case.

    With an Idempotency-Key, the same body again answers with the batch that was made the first time.
    """
    caller()
    context = current_context()
    submission.check_endpoint(context.models, MESSAGES.path)
    rest, upload = read_inline(_line)
    options = validated(wire.MessageBatchOptions, rest)
    if upload is None:
        message = f"Missing required parameter: '{KEY}', a list of at least one request."
        raise RequestError(message, code="missing_required_parameter", param=KEY)
    submission.check_window(context.settings, options.completion_window)
    lines = upload

    def draft() -> Draft:
        lines.commit()
        batch = record_of(options, endpoint=MESSAGES.path, on_invalid="skip", total=lines.lines)
        return submission.draft(context, batch, NewInput(_FILE_NAME, lines))

    return to_wire(create_once(idempotency.of_request(options, lines.sha256), draft)[0])


@routes.get("/v1/messages/batches")
@operation(wire.MessageBatchPage, query=wire.ListMessageBatches, error=wire.MessageError)
def list_() -> wire.MessageBatchPage:
    """List the project's batches of /v1/messages, newest first."""
    owner = caller()
    params = query(wire.ListMessageBatches)
    if params.before_id is not None and params.after_id is not None:
        raise RequestError("Send one of 'before_id' and 'after_id'.", code="invalid_value", param="before_id")
    is_after = params.before_id is None
    name, cursor = ("after_id", params.after_id) if is_after else ("before_id", params.before_id)
    with current_context().database.read() as session:
        try:
            records, has_more = batches.page(
                session,
                owner.project_id,
                after=None if cursor is None else _stored_id(cursor),
                limit=params.limit,
                newest_first=is_after,
                endpoint=MESSAGES.path,
            )
        except RequestError as error:
            message = f"Invalid '{name}': there is no message batch '{cursor}'."
            raise RequestError(message, code="invalid_value", param=name) from error
    newest_first = records if is_after else records[::-1]
    return wire.MessageBatchPage.of([to_wire(batch) for batch in newest_first], has_more=has_more)


def _stored_id(message_batch_id: str) -> str:
    """Return the id of a message batch among batches. Raises NotFoundError."""
    if not message_batch_id.startswith(_PREFIX):
        raise NotFoundError(
            f"No message batch found with id '{cut(message_batch_id, MAX_NAME)}': an id begins with {_PREFIX}, and "
            f"{_STORED_PREFIX}X is called {_PREFIX}X here.",
            param="message_batch_id",
        )
    return _STORED_PREFIX + message_batch_id.removeprefix(_PREFIX)


def _get(message_batch_id: str) -> Batch:
    caller()
    batch = work.get(BATCHES, _stored_id(message_batch_id))
    if batch.endpoint != MESSAGES.path:
        raise NotFoundError(
            f"'{message_batch_id}' is no message batch: its requests are of {batch.endpoint}. Look at it at "
            f"/v1/batches/{batch.id}.",
            param="message_batch_id",
        )
    return batch


@routes.get("/v1/messages/batches/<message_batch_id>")
@operation(wire.MessageBatch, refusals=(404,), error=wire.MessageError)
def retrieve(message_batch_id: str) -> wire.MessageBatch:
    """Look at a message batch."""
    return to_wire(_get(message_batch_id))


@routes.post("/v1/messages/batches/<message_batch_id>/cancel")
@operation(wire.MessageBatch, refusals=(404, 409), error=wire.MessageError)
def cancel(message_batch_id: str) -> wire.MessageBatch:
    """Cancel a message batch: what was answered is kept, the rest is not run."""
    return to_wire(work.control(BATCHES, _get(message_batch_id).id, "cancel"))


@routes.delete("/v1/messages/batches/<message_batch_id>")
@operation(wire.MessageBatchDeleted, refusals=(404, 409), error=wire.MessageError)
def delete(message_batch_id: str) -> wire.MessageBatchDeleted:
    """Delete a message batch that has ended, with all that it had. What it has cost stays."""
    erasure.delete(current_context(), caller(), BATCHES, _get(message_batch_id).id)
    return wire.MessageBatchDeleted(id=message_batch_id)


@routes.get("/v1/messages/batches/<message_batch_id>/results")
@operation(None, media_type="application/jsonl", refusals=(404, 409), error=wire.MessageError)
def results(message_batch_id: str) -> Response:
    """Read the results of a message batch that has ended: a line for each request, those that succeeded first."""
    batch = _get(message_batch_id)
    with ExitStack() as stack:
        response = Response(results_of.read(current_context(), batch, stack), mimetype="application/jsonl")
        response.call_on_close(stack.pop_all().close)
    return response
