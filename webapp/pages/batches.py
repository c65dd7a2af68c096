"""/batches/<id>: one batch with its progress, requests and answers, errors, files and actions."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import flask
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from batchyard.errors import NotFoundError
from batchyard.statuses import TERMINAL
from store import batches, events, files, keys, segments
from store.jobs.records import Job
from store.records import Batch, Event
from tasks.intake import retry_input, submission
from tasks.scheduling import deadlines
from webapp.batches import create_once, get_batch, to_wire
from webapp.files import get_file, send
from webapp.pages import forms, rows, speed
from webapp.requests import caller, current_context
from webapp.wire import BatchObject

routes = Blueprint("batches", __name__, url_prefix="/batches/<batch_id>")

MAX_EVENTS = 20
MAX_SUMMARY_BYTES = 256 * 1024
STEPS = ("created", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled")


@routes.get("")
def show(batch_id: str) -> ResponseReturnValue:
    """Show the page. For htmx: its live part, or a reload of the page once the batch has ended.

    With `seen`, the stamp of what the browser shows, htmx gets the whole page, or nothing (204) if that is still so.
    """
    context, now = current_context(), time.time()
    batch = get_batch(batch_id)
    live, seen = "HX-Request" in flask.request.headers, flask.request.args.get("seen")
    if live and batch.status in TERMINAL:
        return Response(headers={"HX-Refresh": "true"})
    stamp = f"{batch.status}-{batch.completed + batch.failed}"
    if live and seen == stamp:
        return Response(status=204)
    with context.database.read() as session:
        timeline = segments.timeline(session, batch)
        records, _ = events.page(session, batch, after=None, limit=MAX_EVENTS)
        names = files.names(session, batch.project_id, {batch.input_file_id})
        source = files.find(session, batch.project_id, batch.input_file_id)
        creator = keys.named(session, batch.project_id, {batch.created_by}) if batch.created_by else {}
    ended, shown = batch.status in TERMINAL, to_wire([batch])[0]
    variables: dict[str, Any] = {
        "now": now,
        "batch": shown,
        "name": shown.batchyard.name,
        "input_name": batch.stage or names[batch.input_file_id],
        "creator": creator.get(batch.created_by or ""),
        "source": source,
        "ended": ended,
        "steps": steps(batch, records),
        "speed": speed.average(timeline) if ended else speed.recent(timeline, now),
        "series": speed.chart(shown, timeline, now),
        "before": _before(shown),
        "poll": f"{flask.request.path}?{urlencode({**flask.request.args, 'seen': stamp})}",
    }
    if live and seen is None:
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


def _before(batch: BatchObject) -> dict[str, tuple[str, int]]:
    """Return name and due time of the batches that a waiting one names, by id."""
    state = batch.batchyard.state
    ids = {*state.behind_ids, *filter(None, [state.next_id])} if state else set()
    with current_context().database.read() as session:
        return {
            other.id: (other.stage or other.name or other.id, deadlines.deadline(other))
            for other in batches.some(session, caller().project_id, ids)
        }


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
    return _redirect(retry_once(get_batch(batch_id)))


def retry_once(original: Batch) -> Batch:
    """Return a new batch of the requests of `original` without a successful answer, the same if a form is sent twice.

    Raises:
        ConflictError: the batch has not ended, or all its requests succeeded.
    """
    context = current_context()
    return create_once(
        forms.idempotency("retry", original.id),
        lambda: submission.retry(context, original, retry_input.write(context, original)),
    ).batch


def _redirect(batch: Batch) -> ResponseReturnValue:
    return flask.redirect(flask.url_for("pages.batches.show", batch_id=batch.id), 303)
