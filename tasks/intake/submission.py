"""Submission: limits and records of every new batch, from a client, a form or a schedule."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy.orm import Session

from batchyard import durations
from batchyard.errors import RateLimitError, RequestError, UnavailableError
from batchyard.settings import Settings
from inference.requests import bodies
from store import batches, files, speeds
from store.artifacts import Writer
from store.files import INPUT_EXPIRES_AFTER
from store.formats import plan
from store.formats.lines import MAX_LINE_BYTES
from store.records import Batch, File, Project
from tasks.context import AppContext
from tasks.intake.lines import LineError, parse
from tasks.scheduling import deadlines, forecast
from tasks.scheduling.forecast import Forecast
from tasks.steps import registry

# Retry-After of a full project. Only the end of one of its batches frees bytes, and nobody can say when that is.
IN_FLIGHT_RETRY_SECONDS = 30.0


def submit(context: AppContext, session: Session, project_id: str, *, input_file: File, **options: Any) -> Batch:
    """Create a batch, with `options` of `batches.create`, if the limits allow it.

    After the transaction the caller calls `estimate_completion` and sends `messages.validate`.

    Raises:
        RateLimitError: the project has too many bytes in flight, or admission is `refuse` and the batch would be late.
    """
    limit = context.settings.max_bytes_in_flight
    in_flight = batches.bytes_in_flight(session, project_id)
    if in_flight + input_file.bytes > limit:
        raise RateLimitError(
            f"The inputs of this project's unfinished batches have {in_flight} bytes; with this one's "
            f"{input_file.bytes} they would have more than {limit}. Try again when one has ended.",
            retry_after=IN_FLIGHT_RETRY_SECONDS,
            param="input_file_id",
        )
    tier = session.get_one(Project, project_id).tier
    due_after = context.settings.tier_seconds.get(tier) if tier is not None else None
    batch = batches.create(session, project_id, input_file=input_file, due_after=due_after, **options)
    if context.settings.admission == "refuse":
        _admit(batch, _expected(context, session, batch, input_file.bytes))
    return batch


def repeat(
    context: AppContext,
    session: Session,
    old: Batch,
    *,
    input_file: File,
    completion_window: str | None = None,
    metadata: dict[str, str] | None = None,
    retry_of: str | None = None,
    idempotency: tuple[str, str] | None = None,
) -> Batch:
    """Create a batch like `old`, except for the arguments that are not None. Raises as `submit` does."""
    return submit(
        context,
        session,
        old.project_id,
        input_file=input_file,
        endpoint=old.endpoint,
        completion_window=completion_window or old.completion_window,
        metadata=old.request_metadata if metadata is None else metadata,
        post_process=[registry.request(entry) for entry in old.post_process],
        output_expires_after=old.output_expires_after,
        retry_of=retry_of,
        idempotency=idempotency,
    )


def _admit(batch: Batch, expected: Forecast | None) -> None:
    """Raise RateLimitError for a batch that will be late."""
    late = 0.0 if expected is None else expected.at - deadlines.deadline(batch)
    if late > 0:
        raise RateLimitError(
            f"With what is before it, this batch would be done {durations.text(late)} after it is due. Ask for a "
            f"longer completion_window, or try again in {durations.text(late)}.",
            retry_after=late,
            code="deadline_out_of_reach",
            param="completion_window",
        )


def estimate_completion(context: AppContext, batch: Batch) -> None:
    """Publish when a new batch will be done, judged by its size and its first line. Warn if that is too late."""
    with context.database.read() as session:
        expected = _expected(context, session, batch, session.get_one(File, batch.input_file_id).bytes)
    if expected is None:
        return
    deadlines.publish(context, batch.id, expected)
    if expected.at > deadlines.deadline(batch):
        with context.database.write() as session:
            deadlines.warn(session, batch, "at_risk", expected.at)


def _expected(context: AppContext, session: Session, batch: Batch, size: int) -> Forecast | None:
    """Forecast a new batch with an input of `size` bytes; None if its model's speed or its first line is unknown.

    Validation has not counted its requests yet.
    """
    try:
        # The request that creates a batch names a file of an earlier one, which parsed nothing. Reading one line of it
        # costs less than keeping the first line of every file.
        with context.artifacts.open(batch.input_sha256) as source:
            raw = source.readline(MAX_LINE_BYTES)
        body = parse(1, raw)["body"]
        spec = context.models[body["model"]]
        limit = bodies.output_limit(batch.endpoint, body)
        kind = plan.request_class(len(raw), plan.ORDINARY_OUTPUT if limit is None else limit)
    except (LineError, UnavailableError, KeyError, TypeError, AttributeError):
        return None  # validation reports why
    throughput = forecast.throughput_of(spec.name, kind, speeds.throughputs(session, {spec.name: spec.config_sha256}))
    if throughput is None or not throughput.bytes_per_request:
        return None
    ahead = deadlines.seconds_due(context, spec.name, batch.due_at)
    return forecast.single(size, throughput, ahead, time.time())


def input_file(session: Session, project_id: str, file_id: str, *, param: str = "input_file_id") -> File:
    """Return the file with that id. Raises RequestError about `param` if a batch cannot read it."""
    source = files.find(session, project_id, file_id)
    if source is None:
        raise RequestError(f"No file found with id '{file_id}'.", code="invalid_value", param=param)
    if source.purpose != "batch":
        raise RequestError(
            f"The file '{source.id}' has purpose '{source.purpose}'; upload it with purpose 'batch'.",
            code="invalid_value",
            param=param,
        )
    return source


def name_input(session: Session, project_id: str, name: str, source: Writer) -> File:
    """Create a file record for stored content, as the input of a batch."""
    return files.create(
        session,
        project_id,
        filename=name,
        purpose="batch",
        size=source.size,
        sha256=source.sha256,
        expires_after=INPUT_EXPIRES_AFTER,
    )


def retry(context: AppContext, session: Session, old: Batch, unanswered: Writer, **changes: Any) -> Batch:
    """Create a batch of the requests of `old` without a good answer (see retry_input); `changes` as in `repeat`."""
    source = name_input(session, old.project_id, f"{old.id}_retry.jsonl", unanswered)
    return repeat(context, session, old, input_file=source, retry_of=old.id, **changes)


def check_window(settings: Settings, window: str) -> None:
    """Raise RequestError for a completion window that this deployment does not offer."""
    if window != "24h" and not settings.min_window <= durations.seconds(window) <= settings.max_window:
        raise RequestError(
            f"Invalid value for 'completion_window': {window}; supported are 24h and anything from "
            f"{settings.min_window}s to {settings.max_window}s.",
            code="invalid_value",
            param="completion_window",
        )
