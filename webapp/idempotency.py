"""Idempotency keys: a create that is sent again answers with what the first one created."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import flask
from sqlalchemy.orm import Session

from batchyard.errors import RequestError
from batchyard.telemetry import traceparents
from store import events
from store.records import Batch
from store.work.lifecycle import Lifecycle, Record
from tasks.context import AppContext
from tasks.intake import budgets
from webapp.requests import after_response, caller, current_context
from webapp.wire.fields import Repeatable

Idempotency = tuple[str, str] | None
"""The idempotency key of a request and the SHA-256 of its content; None without a key."""

Draft = TypeVar("Draft")


@dataclass(frozen=True)
class Once(Generic[Record, Draft]):
    """A record, and the draft that it was created from; None if an earlier request has created it."""

    record: Record
    draft: Draft | None


def key_of_request() -> str | None:
    """Return the request's header Idempotency-Key. Raises RequestError."""
    header = flask.request.headers.get("Idempotency-Key")
    if header is not None and not 1 <= len(header) <= 255:
        raise RequestError("An Idempotency-Key has 1 to 255 characters.", code="invalid_value", param="Idempotency-Key")
    return header


def of_request(body: Repeatable, *path: str) -> Idempotency:
    """Return the request's idempotency key and the SHA-256 of its path and body. Raises RequestError."""
    header = key_of_request()
    if header is not None and body.idempotency_key not in (None, header):
        message = "The header Idempotency-Key and 'idempotency_key' differ; send one of them."
        raise RequestError(message, code="invalid_value", param="idempotency_key")
    key = header or body.idempotency_key
    if key is None:
        return None
    content = json.dumps([*path, body.model_dump(mode="json", exclude={"idempotency_key"})], sort_keys=True)
    return key, hashlib.sha256(content.encode()).hexdigest()


def once(
    idempotency: Idempotency,
    life: Lifecycle[Record],
    draft: Callable[[], Draft],
    submit: Callable[[AppContext, Session, Draft, Idempotency], Record],
    announce: Callable[[Record], None],
) -> Once[Record, Draft]:
    """Create and announce a record, or return the record of an earlier request with this key.

    `submit` creates the record, in a transaction; `announce` tells a worker of it, after the response. Raises
    ConflictError: the key was used for something else.
    """
    owner, context = caller(), current_context()
    if idempotency is not None:
        with context.database.read() as session:
            earlier = life.repeated(session, owner.project_id, idempotency)
        if earlier is not None:  # what it was made of may be gone by now
            return Once(earlier, None)
    new = draft()
    # Serial: the second of two concurrent posts sees the first one's record.
    with context.database.write(serial=idempotency is not None) as session:
        earlier = life.repeated(session, owner.project_id, idempotency) if idempotency else None
        if earlier is not None:
            return Once(earlier, None)
        budgets.check(context, session, owner.project_id, owner.key_id)
        record = submit(context, session, new, idempotency)
        record.created_by = owner.key_id
        above = traceparents.of_header(flask.request.headers.get("traceparent"))
        record.traceparent = None if above is None else str(above)
        retried = {"retry_of": record.retry_of} if record.retry_of else {}
        events.act(session, owner, "batch.created" if isinstance(record, Batch) else "job.created", record, **retried)
    after_response(lambda: announce(record))
    return Once(record, new)
