"""Retry input: the requests of a batch without a good answer, as the input of another batch."""

from batchyard import json_lines
from batchyard.endpoints import output_lines
from batchyard.errors import ConflictError, RequestError
from batchyard.request_lines.lines import LineError, parse
from batchyard.statuses import TERMINAL
from batchyard.wording import quoted
from store import files
from store.artifacts import ArtifactWriter
from store.formats.lines import numbered_lines
from store.formats.results import readable
from store.records import Batch, File
from store.work.lifecycle import refuse_stage
from tasks.context import AppContext

NOTHING = "nothing_to_retry"
MAX_CORRECTIONS = 10_000
"""Corrected lines of one retry: they are held in memory."""


class Corrections:
    """The corrected lines of a file: requests that name the line or the custom_id that they replace."""

    def __init__(self, context: AppContext, file: File | ArtifactWriter) -> None:
        """Read the file. Raises RequestError for a line that is no JSON object or names nothing."""
        self._lines: dict[int | str, tuple[int, bytes]] = {}
        with context.artifacts.open(file.sha256) as source:
            for number, raw in numbered_lines(source, context.settings.max_line_bytes):
                try:
                    request = parse(number, raw, context.settings.max_line_bytes)
                except LineError as error:
                    raise _uncorrected(number, error.message) from None
                line, custom_id = request.pop("line", None), request.get("custom_id")
                key = line if isinstance(line, int) else custom_id
                if not isinstance(key, int | str) or len(self._lines) >= MAX_CORRECTIONS:
                    most = f"there are at most {MAX_CORRECTIONS} corrected lines; retry the rest afterwards"
                    raise _uncorrected(number, "it names neither a line nor a custom_id" if key is None else most)
                self._lines[key] = number, json_lines.line(request)

    def take(self, number: int, custom_id: str) -> bytes | None:
        """Return the correction of a line once; None if there is none."""
        key = number if number in self._lines else custom_id
        return self._lines.pop(key, (0, None))[1]

    def check(self) -> None:
        """Raise RequestError if a correction is of no line that could be corrected."""
        for key, (number, _) in self._lines.items():
            raise _uncorrected(number, f"no request without an answer is {quoted(str(key))}")


def _uncorrected(number: int, reason: str) -> RequestError:
    return RequestError(f"Line {number} of the corrected lines: {reason}.", code="invalid_value", param="fixed_file_id")


def write(
    context: AppContext, batch: Batch, *, only_passing: bool = False, fixed: Corrections | None = None
) -> ArtifactWriter:
    """Store the input's failed, expired and cancelled lines, byte for byte in input order.

    Lines that are no valid requests, which the batch has skipped, are left out unless they are `fixed`: they would be
    no better this time. Of a batch that failed validation all lines are stored, if some are fixed. With `only_passing`,
    requests whose errors would come again (`output_lines.is_passing`) are left out.

    The error file has one line for each of these requests in the same order, so one pass reads both side by side.

    Raises RequestError: a correction is of no line without an answer; ConflictError: the batch has not ended, has no
    such line, is a job's, or its input or error file was deleted.
    """
    refuse_stage(batch, "retry")
    if batch.status not in TERMINAL:
        raise _conflict(f"Cannot retry a batch with status '{batch.status}'; wait for its end, or cancel it.")
    if batch.status == "failed" and fixed is None:
        raise _conflict("The input of this batch failed validation; send the lines that its errors name, corrected.")
    if batch.error_file_id is None and batch.status != "failed":
        raise _conflict("Every request of this batch was answered: there is nothing to retry.", NOTHING)
    with context.database.read() as session:
        source = files.find(session, batch.project_id, batch.input_file_id)
        errors = files.find(session, batch.project_id, batch.error_file_id) if batch.error_file_id else None
    if batch.status == "failed":
        assert fixed is not None
        sha256 = _content(source, "input")
        with context.artifacts.open(sha256) as lines, context.artifacts.create() as unanswered:
            for number, raw in enumerate(lines, 1):
                unanswered.write(fixed.take(number, readable(raw)[0]) or raw.rstrip(b"\r\n") + b"\n")
    else:
        unanswered = _select(context, _content(source, "input"), _content(errors, "error"), only_passing, fixed)
    if fixed is not None:
        fixed.check()
    if not unanswered.size and only_passing:
        raise _conflict("Every error of this batch would come again: there is nothing to retry.", NOTHING)
    if not unanswered.size:
        message = "No valid request is left to retry; correct the lines that the error file names."
        raise _conflict(message, NOTHING)
    return unanswered


def _content(file: File | None, name: str) -> str:
    if file is None:
        raise _conflict(f"The {name} file of this batch was deleted or has expired; make a new batch.")
    return file.sha256


def _conflict(message: str, code: str | None = None) -> ConflictError:
    return ConflictError(message, code=code, param="batch_id")


def _select(
    context: AppContext, source_sha256: str, errors_sha256: str, only_passing: bool, fixed: Corrections | None
) -> ArtifactWriter:
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
            is_unanswered = invalid is None and not json_lines.is_blank(raw) and readable(raw)[0] == answer["custom_id"]
            if invalid != number and not is_unanswered:
                continue
            correction = fixed and fixed.take(number, readable(raw)[0])
            if correction:
                target.write(correction)
            elif is_unanswered and (not only_passing or output_lines.is_passing(answer)):
                target.write(raw.rstrip(b"\r\n") + b"\n")
            answer = next(answers, None)
    return target
