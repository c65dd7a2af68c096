"""Submission: limits and records of every new batch, from a client, a form or a schedule."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from batchyard import durations
from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.endpoints.guards import GUARDED
from batchyard.errors import RateLimitError, RequestError
from batchyard.models import ModelSpec, served_by_name
from batchyard.request_lines import warnings
from batchyard.request_lines.lines import LineError, parse
from batchyard.settings import Settings
from batchyard.statuses import BACKGROUND
from batchyard.wording import unsupported
from store import batches, files, projects, speeds, webhooks
from store.artifacts import ArtifactWriter
from store.files import INPUT_EXPIRES_AFTER
from store.formats import plan
from store.formats.lines import numbered_lines
from store.records import Batch, File, Job
from store.speeds import Expected, RequestClass, Throughput
from store.work import overview, turns
from tasks.context import AppContext
from tasks.execution import engine_status
from tasks.intake import budgets
from tasks.scheduling import costs, deadlines, forecast
from tasks.scheduling.forecast import Forecast
from tasks.scheduling.throughput import expected_finish
from tasks.steps import registry
from tasks.webhooks import outbound

log = logging.getLogger(__name__)

JOB_PURPOSES = ("user_data", "batch")
"""Purposes of files that can be the input of a job."""

# Retry-After of a full project. Only the end of one of its batches frees bytes, and nobody can say when that is.
IN_FLIGHT_RETRY_SECONDS = 30.0


@dataclass(frozen=True)
class Outlook:
    """What a new batch is forecast from before validation has counted its requests.

    `start` is the time until its engine is there, `finish` that from its last answer to its files. `ahead` has (due_at,
    seconds of work due by then) of its model, in the order of `due_at`.
    """

    size: int
    throughput: Throughput
    start: Expected
    finish: Expected
    ahead: list[tuple[int, float]]

    def forecast(self, due_at: int) -> Forecast:
        before = max((seconds for due, seconds in self.ahead if due <= due_at), default=0.0)
        answers = forecast.single(self.size, self.throughput, before, time.time())
        return forecast.later(forecast.later(answers, self.start), self.finish)


@dataclass(frozen=True)
class Draft:
    """A batch to create: its unsaved record, its input, and its outlook if known."""

    batch: Batch
    source: File | NewInput
    outlook: Outlook | None


class NewInput(NamedTuple):
    name: str
    content: ArtifactWriter


def draft(context: AppContext, batch: Batch, source: File | NewInput) -> Draft:
    """Prepare a batch. Reads the artifact store and Redis, so call it before the transaction. Raises RequestError."""
    options = {name: getattr(batch, name) for name in ("post_process", "callback_url", "guard", "endpoint")}
    check_options(context.settings, batch.project_id, options)
    content = source if isinstance(source, File) else source.content
    size = source.bytes if isinstance(source, File) else source.content.size
    number, first_line = _first_line(context, content.sha256)
    batch.warnings = warnings.of_line(batch.endpoint, number, first_line)
    return Draft(batch, source, _outlook(context, batch, first_line, size))


def forecast_of(context: AppContext, batch: Batch, first_line: bytes, size: int) -> Forecast | None:
    """Return the forecast of a batch that would be created now, of `size` bytes that begin with this line."""
    outlook = _outlook(context, batch, first_line, size)
    return None if outlook is None else outlook.forecast(due_if_created_now(context, batch))


def submit(context: AppContext, session: Session, draft: Draft, idempotency: tuple[str, str] | None = None) -> Batch:
    """Create a batch if the limits allow it. Raises RateLimitError; also where `refuse` admits none that is late.

    After the transaction the caller sends `messages.validate`, then calls `estimate_completion`.
    """
    project_id, source = draft.batch.project_id, draft.source
    if isinstance(source, NewInput):
        source = name_input(session, project_id, source)
    due_after = admit(context, session, project_id, source.bytes)
    if draft.batch.callback_url is not None:
        webhooks.callbacks(session, project_id)
    batch = batches.create(session, draft.batch, source, due_after=due_after, idempotency=idempotency)
    if context.settings.admission == "refuse" and draft.outlook is not None:
        late = draft.outlook.forecast(batch.due_at).at - deadlines.deadline(batch)
        if late > 0:
            message = (
                f"With what is before it, this batch would be done {durations.text(late)} after it is due. Ask for a "
                f"longer completion_window, or try again in {durations.text(late)}."
            )
            raise RateLimitError(message, retry_after=late, code="deadline_out_of_reach", param="completion_window")
    return batch


def dry_run(context: AppContext, draft: Draft) -> tuple[int, Forecast | None]:
    """Return until when the batch would have to be done if it were created now, and its forecast if there is one."""
    due_at = due_if_created_now(context, draft.batch)
    return due_at, None if draft.outlook is None else draft.outlook.forecast(due_at)


def due_if_created_now(context: AppContext, work: Batch | Job) -> int:
    """Return until when unsaved work would have to be done, by its window and its project's tier."""
    with context.database.read() as session:
        tier = projects.get(session, work.project_id).tier
    seconds = durations.seconds(work.completion_window)
    return int(time.time()) + min(seconds, context.settings.tier_seconds.get(tier or "", seconds))


def admit(context: AppContext, session: Session, project_id: str, size: int, key_id: str | None = None) -> int | None:
    """Count `size` new bytes until the end of the transaction. Return when work is due by its tier, if it is.

    `key_id`: that of the open batch that gets the bytes; a new batch's key is checked by webapp.idempotency.

    Raises RateLimitError: too many bytes are in flight, or too much is not validated yet; PermissionDeniedError: the
    budget is spent.
    """
    project = projects.get(session, project_id, lock=True)  # two concurrent sums would exceed the limit
    budgets.check(context, session, project_id)
    if key_id is not None:
        budgets.check(context, session, project_id, key_id)
    limit = context.settings.max_bytes_in_flight
    unvalidated, most = turns.count_unvalidated(session, project_id), context.settings.max_unvalidated
    if unvalidated >= most:
        raise RateLimitError(
            f"{unvalidated} batches and jobs of this project wait to be validated, and {most} may. Try again in a "
            "while, and send many requests as one batch.",
            retry_after=IN_FLIGHT_RETRY_SECONDS,
        )
    in_flight = overview.bytes_in_flight(session, project_id)
    if in_flight + size > limit:
        message = (
            f"The inputs of this project's unfinished batches and jobs have {in_flight} bytes; with this one's "
            f"{size} they would have more than {limit}. Try again when one has ended."
        )
        raise RateLimitError(message, retry_after=IN_FLIGHT_RETRY_SECONDS, param="input_file_id")
    return context.settings.tier_seconds.get(project.tier) if project.tier is not None else None


def repeat(
    context: AppContext,
    old: Batch,
    source: File | NewInput,
    *,
    completion_window: str | None = None,
    metadata: dict[str, str] | None = None,
    retry_of: str | None = None,
) -> Draft:
    """Prepare a batch like `old`, except for the arguments that are not None."""
    batch = Batch(
        **{
            name: getattr(old, name)
            for name in (
                *("project_id", "endpoint", "output_expires_after", "callback_url", "on_invalid", "priority"),
                *("stop_when", "guard"),
            )
        },
        completion_window=completion_window or old.completion_window,
        request_metadata=old.request_metadata if metadata is None else metadata,
        post_process=[registry.request(entry) for entry in old.post_process],
        retry_of=retry_of,
    )
    return draft(context, batch, source)


def retry(context: AppContext, old: Batch, unanswered: ArtifactWriter, **changes: Any) -> Draft:
    """Prepare a batch of the requests of `old` without a good answer (see retry_input); `changes` as in `repeat`."""
    return repeat(context, old, NewInput(f"{old.id}_retry.jsonl", unanswered), retry_of=old.id, **changes)


def estimate_completion(context: AppContext, batch: Batch, outlook: Outlook | None) -> Forecast | None:
    """Publish and return a new batch's forecast, if there is one; warn if it is too late.

    It raises nothing: the batch is committed, and a failure here must not look like a failure to create it.
    """
    if outlook is None:
        return None
    expected = outlook.forecast(batch.due_at)
    try:
        deadlines.publish(context, batch.id, expected)
        if expected.at > deadlines.deadline(batch):
            with context.database.write() as session:
                deadlines.warn(session, batch, "at_risk", expected.at)
    except Exception:
        log.exception("new batch not forecast; the next tick does it", extra={"batch_id": batch.id})
    return expected


def _first_line(context: AppContext, sha256: str) -> tuple[int, bytes]:
    """Return the first line that is not blank, with its number; it raises nothing."""
    if not sha256:
        return 1, b""
    try:
        with context.artifacts.open(sha256) as source:
            return next(numbered_lines(source, context.settings.max_line_bytes), (1, b""))
    except Exception:
        log.exception("first line of a new batch not read", extra={"sha256": sha256})
        return 1, b""


def _outlook(context: AppContext, batch: Batch, first_line: bytes, size: int) -> Outlook | None:
    """Return the outlook of a batch that begins with this line, if known; it raises nothing."""
    try:
        first = _first_request(context, batch.endpoint, first_line)
        if first is None:
            return None
        spec, kind = first
        with context.database.read() as session:
            throughputs = speeds.throughputs(session, {spec.name: spec})
            throughput = costs.throughput_of(spec.name, kind, throughputs)
            if throughput is None or not throughput.bytes_per_request:
                return None
            finish = expected_finish(session, batch.post_process, size / throughput.bytes_per_request)
        engines = engine_status.known(context)
        if engines and costs.start_is_unknown(spec.name, throughput, engines):
            return None
        start = costs.start_delay(spec.name, throughput, engines, time.time()) if engines else costs.NOTHING
        ahead = deadlines.work_due(context, spec.name)
        if batch.priority == BACKGROUND and ahead:
            return None  # nobody knows when something is spare
        return Outlook(size, throughput, start, finish, ahead)
    except Exception:
        log.exception("new batch not forecast")
        return None


def _first_request(context: AppContext, endpoint: str, raw: bytes) -> tuple[ModelSpec, RequestClass] | None:
    """Return model and class of a file's first line; None for one that validation refuses."""
    try:
        body = parse(1, raw, context.settings.max_line_bytes)["body"]
        limit = ENDPOINTS[endpoint].output_limit(body)
        return served_by_name(context.models)[body["model"]], plan.request_class(
            len(raw), plan.ORDINARY_OUTPUT if limit is None else limit
        )
    except (LineError, KeyError, TypeError, AttributeError):
        return None


def input_file(
    session: Session,
    project_id: str,
    file_id: str,
    *,
    param: str = "input_file_id",
    purposes: Sequence[str] = ("batch",),
) -> File:
    """Return the file with that id. Raises RequestError about `param` if it is unknown or has another purpose."""
    source = files.find(session, project_id, file_id)
    if source is None:
        raise RequestError(f"No file found with id '{file_id}'.", code="invalid_value", param=param)
    if source.purpose not in purposes:
        wanted = " or ".join(f"'{purpose}'" for purpose in purposes)
        message = f"The file '{source.id}' has purpose '{source.purpose}'; upload it with purpose {wanted}."
        raise RequestError(message, code="invalid_value", param=param)
    return source


def input_file_or_none(session: Session, project_id: str, file_id: str) -> File:
    """Return a file, or an empty one, which validation reports. Raises RequestError for another purpose."""
    if files.find(session, project_id, file_id) is None:
        return File(id=file_id, bytes=0, sha256="")
    return input_file(session, project_id, file_id)


def no_file() -> File:
    """Return the input of an open batch, which has none before it ends."""
    return File(id="", bytes=0, sha256="", filename="open batch")


def name_input(session: Session, project_id: str, source: NewInput, purpose: str = "batch") -> File:
    """Create a file record for stored content, as the input of a batch or a job. Raises as `files.check_room`."""
    files.check_room(session, project_id, source.content.size)
    return files.create(
        session,
        project_id,
        filename=source.name,
        purpose=purpose,
        size=source.content.size,
        sha256=source.content.sha256,
        expires_after=INPUT_EXPIRES_AFTER,
    )


def check_endpoint(models: Mapping[str, ModelSpec], endpoint: str) -> None:
    """Raise RequestError, in OpenAI's words, for an endpoint that no model serves."""
    served = [path for path in ENDPOINTS if any(path in spec.endpoints for spec in models.values())]
    if endpoint not in served:
        raise RequestError(unsupported("endpoint", endpoint, served), code="invalid_value", param="endpoint")


def check_options(settings: Settings, project_id: str, options: Mapping[str, Any]) -> None:
    """Raise RequestError for steps, a callback or a guard that a project's batch or job cannot have."""
    registry.permit(options["post_process"], settings, project_id)
    outbound.check_callback(options.get("callback_url"), allow_private=settings.webhooks_allow_private)
    if options.get("guard") is not None and options["endpoint"] not in GUARDED:
        message = f"A guard ends answers on {' and '.join(GUARDED)} only; leave it out."
        raise RequestError(message, code="invalid_value", param="guard")


def check_window(settings: Settings, window: str) -> None:
    """Raise RequestError for a completion window that this deployment does not offer."""
    if window != "24h" and not settings.min_window <= durations.seconds(window) <= settings.max_window:
        message = (
            f"Invalid value for 'completion_window': {window}; supported are 24h and anything from "
            f"{durations.words(settings.min_window)} to {durations.words(settings.max_window)}."
        )
        raise RequestError(message, code="invalid_value", param="completion_window")
