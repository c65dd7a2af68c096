"""/batches/<id>: one batch with its progress, requests and answers, errors, files and actions."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

import flask
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from batchyard.errors import NotFoundError
from batchyard.statuses import TERMINAL
from store import batches, events, files, segments
from store.jobs.records import Job
from store.records import Batch, Event
from tasks.intake import retry_input, submission
from tasks.intake.submission import Draft
from webapp.batches import create_once, get_batch, to_wire
from webapp.files import get_file, send
from webapp.pages import forms, rows
from webapp.requests import caller, current_context

routes = Blueprint("batches", __name__, url_prefix="/batches/<batch_id>")

MAX_EVENTS = 20
MIN_RATE_SECONDS = 10.0
MAX_SUMMARY_BYTES = 256 * 1024
STEPS = ("created", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled")


@routes.get("")
def show(batch_id: str) -> ResponseReturnValue:
    """Show the page. For htmx: its live part, or a reload of the page once the batch has ended."""
    context = current_context()
    batch = get_batch(batch_id)
    live = "HX-Request" in flask.request.headers
    if live and batch.status in TERMINAL:
        return Response(headers={"HX-Refresh": "true"})
    with context.database.read() as session:
        timeline = segments.timeline(session, batch)
        records, _ = events.page(session, batch, after=None, limit=MAX_EVENTS)
        names = files.names(session, batch.project_id, {batch.input_file_id})
        source = files.find(session, batch.project_id, batch.input_file_id)
    variables: dict[str, Any] = {
        "now": time.time(),
        "batch": to_wire([batch])[0],
        "name": batch.stage or names[batch.input_file_id],
        "source": source,
        "ended": batch.status in TERMINAL,
        "steps": steps(batch, records),
        "series": _series(timeline),
    }
    if live:
        return flask.render_template("batch_live.html", **variables)
    listed, problems = rows.beginning(batch)
    return flask.render_template(
        "batch.html",
        **variables,
        **listed,
        planned=batch.planned,
        problems=problems,
        summaries=_summaries(batch),
        once=secrets.token_hex(16),
    )


def steps(record: Batch | Job, records: Sequence[Event]) -> list[tuple[str, int]]:
    """Return the statuses that a batch or a job has had and the warnings of its deadline, with their times in order."""
    statuses = [(step, at) for step in STEPS if (at := getattr(record, f"{step}_at")) is not None]
    states = [event.type.partition(".")[2] for event in records]
    warnings = [
        (f"sla-{state}", event.created_at)
        for state, event in zip(states, records, strict=True)
        if state in ("at_risk", "late", "on_track")
    ]
    return sorted(statuses + warnings, key=lambda step: step[1])


def _series(timeline: list[list[float]]) -> str:
    """Return the chart's data as JSON: times, requests answered until each, and rows per second before each."""
    if len(timeline) < 2:
        return ""
    times, answered = [point[0] for point in timeline], [point[1] for point in timeline]
    # Result chunks of several segments arrive at once: a rate needs a window.
    window = max(MIN_RATE_SECONDS, (times[-1] - times[0]) / 30)
    rates: list[float | None] = [None]
    start = 0
    for end in range(1, len(times)):
        while start + 1 < end and times[end] - times[start + 1] >= window:
            start += 1
        rates.append(round((answered[end] - answered[start]) / max(times[end] - times[start], 0.1), 1))
    return json.dumps([times, answered, rates])


def _summaries(batch: Batch) -> dict[str, dict[str, Any]]:
    """Return the summaries of post-processing steps by artifact name: JSON objects of at most MAX_SUMMARY_BYTES."""
    context = current_context()
    with context.database.read() as session:
        names = [artifact.name for artifact, _ in batches.artifacts(session, [batch.id])[batch.id]]
        names = [name for name in names if name.endswith("-summary.json")]
        summary_files = {name: files.find_artifact(session, batch.project_id, batch.id, name) for name in names}
    summaries = {
        name: json.loads(context.artifacts.read(file.sha256))
        for name, file in summary_files.items()
        if file is not None and file.bytes <= MAX_SUMMARY_BYTES
    }
    return {name: summary for name, summary in summaries.items() if isinstance(summary, dict)}


@routes.get("/input")
def download_input(batch_id: str) -> Response:
    return send(get_file(get_batch(batch_id).input_file_id))


@routes.get("/artifacts/<name>")
def download(batch_id: str, name: str) -> Response:
    with current_context().database.read() as session:
        file = files.find_artifact(session, caller().project_id, batch_id, name)
    if file is None:
        raise NotFoundError(f"No artifact '{name}' of batch '{batch_id}' found.")
    return send(file)


@routes.post("/cancel")
def cancel(batch_id: str) -> ResponseReturnValue:
    with current_context().database.write() as session:
        batch = batches.cancel(session, caller().project_id, batch_id)
    return _redirect(batch)


@routes.post("/retry")
def retry(batch_id: str) -> ResponseReturnValue:
    """Create a batch of the requests without a successful answer."""
    context, original = current_context(), get_batch(batch_id)
    created = create_once(
        forms.idempotency("retry", original.id),
        lambda: submission.retry(context, original, retry_input.write(context, original)),
    )
    return _redirect(created.batch)


@routes.post("/repeat")
def repeat(batch_id: str) -> ResponseReturnValue:
    """Create a batch of the same file with the same options."""
    context, original = current_context(), get_batch(batch_id)

    def draft() -> Draft:
        batches.refuse_stage(original, "retry")
        with context.database.read() as session:
            source = submission.input_file(session, original.project_id, original.input_file_id)
        return submission.repeat(context, original, source)

    return _redirect(create_once(forms.idempotency("repeat", original.id), draft).batch)


def _redirect(batch: Batch) -> ResponseReturnValue:
    return flask.redirect(flask.url_for("pages.batches.show", batch_id=batch.id), 303)
