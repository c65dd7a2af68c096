"""Results of a message batch: the lines of its output and error files, as Anthropic writes them."""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from batchyard import json_lines
from batchyard.endpoints import output_lines
from batchyard.errors import ConflictError, NotFoundError
from batchyard.request_lines.lines import custom_id
from batchyard.statuses import TERMINAL
from store import files
from store.formats.lines import numbered_lines
from store.records import Batch
from tasks.context import AppContext
from webapp.anthropic import errors

_PIECE = 100
_TYPES = {"batch_expired": "expired", "batch_cancelled": "canceled"}
_FAILED = {
    "code": "batch_failed",
    "message": "This request was not run, since other requests of its batch are invalid.",
}
_CANCELLED = {"code": "batch_cancelled"}


def read(context: AppContext, batch: Batch, stack: ExitStack) -> Iterator[bytes]:
    """Yield the results of an ended batch as JSON lines, in pieces of many. Files are opened in `stack` at once.

    Raises ConflictError: it has not ended; NotFoundError: a file of it was deleted or has expired; UnavailableError.
    """
    if batch.status not in TERMINAL:
        message = "The message batch has no results before its processing_status is 'ended'."
        raise ConflictError(message, param="message_batch_id")
    if is_unmerged(batch):
        source = stack.enter_context(context.artifacts.open(batch.input_sha256)) if batch.input_sha256 else ()
        return _pieces(_unmerged(batch, numbered_lines(source, context.settings.max_line_bytes) if source else ()))
    with context.database.read() as session:
        ids = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id]
        sources = [files.find(session, batch.project_id, file_id) for file_id in ids]
    hashes = [source.sha256 for source in sources if source is not None]
    if len(hashes) < len(ids):
        raise NotFoundError("The results of this message batch were deleted or have expired.")
    opened = [stack.enter_context(context.artifacts.open(sha256)) for sha256 in hashes]
    return _pieces(map(json_lines.loads, itertools.chain.from_iterable(opened)))


def is_unmerged(batch: Batch) -> bool:
    """True for an ended batch whose requests have no lines in files: it failed, or was cancelled before it had a plan.

    Its requests all come to the same end.
    """
    return batch.status == "failed" or (batch.status == "cancelled" and not batch.planned)


def _unmerged(batch: Batch, lines: Iterable[tuple[int, bytes]]) -> Iterator[dict[str, Any]]:
    """Yield a line for each input line of such a batch, as in an error file."""
    by_line: dict[int | None, dict[str, Any]] = {}
    whole = _CANCELLED
    if batch.status == "failed":
        by_line = {error["line"]: error for error in batch.errors or [] if error["code"] != "too_many_errors"}
        whole = by_line.get(None, _FAILED)
    for number, raw in lines:
        yield {"custom_id": custom_id(raw), "response": None, "error": by_line.get(number, whole)}


def _pieces(answers: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    results = (json_lines.line(_result(answer)) for answer in answers)
    while piece := b"".join(itertools.islice(results, _PIECE)):
        yield piece


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a line of an output or error file as a line of results."""
    custom_id, response = answer["custom_id"], answer["response"]
    if response is not None and not output_lines.error(answer):
        return {"custom_id": custom_id, "result": {"type": "succeeded", "message": response["body"]}}
    never_run = _TYPES.get(str(output_lines.error(answer).get("code"))) if response is None else None
    if never_run is not None:
        return {"custom_id": custom_id, "result": {"type": never_run}}
    return {"custom_id": custom_id, "result": {"type": "errored", "error": errors.of_line(answer).model_dump()}}
