"""Retry input: the requests of a batch without a good answer, as the input of another batch."""

from __future__ import annotations

from batchyard import json_lines
from batchyard.endpoints import output_lines
from batchyard.errors import ConflictError
from batchyard.statuses import TERMINAL
from store import files
from store.artifacts import ArtifactWriter
from store.formats.results import readable
from store.records import Batch, File
from store.work.lifecycle import refuse_stage
from tasks.context import AppContext

NOTHING = "nothing_to_retry"


def write(context: AppContext, batch: Batch, *, only_passing: bool = False) -> ArtifactWriter:
    """Store the input's failed, expired and cancelled lines, byte for byte in input order.

    Lines that are no valid requests, which the batch has skipped, are left out: they would be no better this time.

    The error file has one line for each of these requests in the same order, so one pass reads both side by side.

    Args:
        only_passing: leave out requests whose errors would come again (`output_lines.is_passing`).

    Raises:
        ConflictError: the batch has not ended, has no such line, is a job's, or its input or error file was deleted.
    """
    refuse_stage(batch, "retry")
    if batch.status not in TERMINAL:
        raise _conflict(f"Cannot retry a batch with status '{batch.status}'; wait for its end, or cancel it.")
    if batch.status == "failed":
        raise _conflict("The input of this batch failed validation; correct the lines its errors name and upload it.")
    if batch.error_file_id is None:
        raise _conflict("Every request of this batch was answered: there is nothing to retry.", NOTHING)
    with context.database.read() as session:
        source = files.find(session, batch.project_id, batch.input_file_id)
        errors = files.find(session, batch.project_id, batch.error_file_id)
    unanswered = _select(context, _content(source, "input"), _content(errors, "error"), only_passing)
    if not unanswered.size and only_passing:
        raise _conflict("Every error of this batch would come again: there is nothing to retry.", NOTHING)
    if not unanswered.size:
        message = "Every line without an answer is no valid request; correct those that the error file names."
        raise _conflict(message, NOTHING)
    return unanswered


def _content(file: File | None, name: str) -> str:
    """Return a file's SHA-256. Raises ConflictError if it is deleted."""
    if file is None:
        raise _conflict(f"The {name} file of this batch was deleted or has expired; make a new batch.")
    return file.sha256


def _conflict(message: str, code: str | None = None) -> ConflictError:
    return ConflictError(message, code=code, param="batch_id")


def _select(context: AppContext, source_sha256: str, errors_sha256: str, only_passing: bool) -> ArtifactWriter:
    with (
        context.artifacts.open(source_sha256) as source,
        context.artifacts.open(errors_sha256) as errors,
        context.artifacts.create() as target,
    ):
        answers = map(json_lines.loads, errors)
        answer = next(answers, None)
        for number, raw in enumerate(source, 1):
            if answer is None:
                break
            invalid = output_lines.invalid_line(answer)  # it may have the custom_id of a valid line
            if invalid == number:
                answer = next(answers, None)
            elif invalid is None and not json_lines.is_blank(raw) and readable(raw)[0] == answer["custom_id"]:
                if not only_passing or output_lines.is_passing(answer):
                    target.write(raw.rstrip(b"\r\n") + b"\n")
                answer = next(answers, None)
    return target
