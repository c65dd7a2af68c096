"""The requests of a batch that have no good answer, as the input of another batch."""

from __future__ import annotations

import orjson

from batchyard.errors import ConflictError
from batchyard.statuses import TERMINAL
from store import files
from store.artifacts import Writer
from store.records import Batch, File
from tasks.context import AppContext


def write(context: AppContext, batch: Batch) -> Writer:
    """Store the lines of the batch's input that failed, expired or were cancelled, byte for byte and in input order.

    The error file has one line for each of them in the same order, so both are read once, side by side.

    Raises:
        ConflictError: the batch has not ended, has no such line, or a file that is needed is gone.
    """
    if batch.status not in TERMINAL:
        raise _conflict(f"Cannot retry a batch with status '{batch.status}'; wait for its end, or cancel it.")
    if batch.status == "failed":
        raise _conflict("The input of this batch failed validation; correct the lines its errors name and upload it.")
    if batch.error_file_id is None:
        raise _conflict("Every request of this batch was answered: there is nothing to retry.")
    with context.database.read() as session:
        source = files.find(session, batch.project_id, batch.input_file_id)
        errors = files.find(session, batch.project_id, batch.error_file_id)
    return _select(context, _there(source, "input"), _there(errors, "error"))


def _there(file: File | None, which: str) -> str:
    if file is None:
        raise _conflict(f"The {which} file of this batch was deleted or has expired; make a new batch.")
    return file.sha256


def _conflict(message: str) -> ConflictError:
    return ConflictError(message, param="batch_id")


def _select(context: AppContext, source_sha256: str, errors_sha256: str) -> Writer:
    with (
        context.artifacts.open(source_sha256) as source,
        context.artifacts.open(errors_sha256) as errors,
        context.artifacts.create() as target,
    ):
        wanted = _next_id(errors.readline())
        for raw in source:
            if wanted is None:
                break
            if raw.strip() and orjson.loads(raw)["custom_id"] == wanted:
                target.write(raw.rstrip(b"\r\n") + b"\n")
                wanted = _next_id(errors.readline())
    return target


def _next_id(raw: bytes) -> str | None:
    return orjson.loads(raw)["custom_id"] if raw else None
