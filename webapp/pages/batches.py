"""/batches/<id>: one batch with its progress, requests and answers, errors, files and actions."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

import flask
import orjson
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from batchyard import json_lines, signatures
from batchyard.errors import NotFoundError, RequestError, UnavailableError
from batchyard.statuses import TERMINAL
from batchyard.wording import PLAN_SHARES
from store import batches, events, files, keys, segments
from store.artifacts import ArtifactWriter
from store.batches import BATCHES
from store.records import Batch, Event, Job
from store.work.lifecycle import Verb
from tasks.intake import retry_input, sampling, submission
from tasks.intake.retry_input import Corrections
from tasks.scheduling import deadlines
from webapp.batches import apply, create_once, get_batch, to_wire, verify_once
from webapp.files import get_file, missing, send, uploaded
from webapp.pages import forms, rows, speed
from webapp.requests import caller, current_context, validated
from webapp.wire.batches import BatchObject, ChangeBatch, VerifyBatch
from webapp.work import control, title

routes = Blueprint("batches", __name__, url_prefix="/batches/<batch_id>")

MAX_EVENTS = 100
SUMMARY = "-summary.json"
"""How the names of the summaries of steps end."""
MAX_SUMMARY_BYTES = 256 * 1024
STEPS = ("created", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled")


class HistoryEntry(NamedTuple):
    """Something that has happened to a batch or a job, and who did it; `what` says what was changed."""

    name: str
    at: int
    by: str | None = None
    what: str = ""


@routes.get("")
def show(batch_id: str) -> ResponseReturnValue:
    """Show the page. For htmx: its live part, or a reload of the page once the batch has ended.

    With `seen`, the stamp of what the browser shows, htmx gets the whole page, or nothing (204) if that is still so.
    """
    context, now = current_context(), time.time()
    batch = get_batch(batch_id)
    live, seen = "HX-Request" in flask.request.headers, flask.request.args.get("seen")
    has_wrong_button = flask.request.args.get("paused", type=int) == (batch.paused_at is None)
    if live and (batch.status in TERMINAL or has_wrong_button):
        return Response(headers={"HX-Refresh": "true"})
    stamp = f"{batch.status}-{batch.paused_at or ''}-{batch.completed + batch.failed}-{batch.total}-{batch.open:d}"
    if live and seen == stamp:
        return Response(status=204)
    with context.database.read() as session:
        timeline = segments.timeline(session, batch)
        records, _ = events.page(session, batch, after=None, limit=MAX_EVENTS)
        names = files.names(session, batch.project_id, {batch.input_file_id})
        source = files.find(session, batch.project_id, batch.input_file_id)
        creator = keys.named(session, batch.project_id, {batch.created_by}) if batch.created_by else {}
    ended, shown = batch.status in TERMINAL, to_wire([batch])[0]
    variables = {
        "now": now,
        "batch": shown,
        "input_name": batch.stage or names[batch.input_file_id] or batch.name,
        "creator": creator.get(batch.created_by or ""),
        "source": source,
        "ended": ended,
        "steps": steps(batch, records),
        "speed": speed.average(timeline) if ended else speed.recent(timeline, now),
        "charts": speed.draw(shown, timeline, now),
        "before": _before(shown),
        "poll": f"{flask.request.path}?{urlencode({**flask.request.args, 'seen': stamp})}",
    }
    if live and seen is None:
        return flask.render_template("batch_live.html", **variables)
    listed, problems = rows.beginning(batch)
    is_sampled = batch.paused_at and batch.sample_segments and not batch.sampling
    proof, summaries, plan = dict[str, Any](), dict[str, Any](), None
    with suppress(UnavailableError):  # the rows say what is away
        proof = json_artifacts(batch, signatures.MANIFEST, signatures.ENVELOPE)
        summaries = json_artifacts(batch, SUMMARY)
        plan = sampling.report(context, batch) if is_sampled else None
    return flask.render_template(
        "batch.html",
        **variables,
        **listed,
        planned=batch.planned,
        problems=problems,
        fields={},
        summaries=summaries,
        proof=proof,
        plan=plan,
        plan_shares=PLAN_SHARES,
        once=secrets.token_hex(16),
    )


def steps(record: Batch | Job, records: Sequence[Event]) -> list[HistoryEntry]:
    """Return what has happened to a batch or a job, in order: statuses, warnings of its deadline, what people did."""
    by = {event.type.partition(".")[2]: event.key_name for event in records if event.key_id}
    statuses = [
        HistoryEntry(step, at, by.get(step)) for step in STEPS if (at := getattr(record, f"{step}_at")) is not None
    ]
    others = []
    for event in records:
        name = event.type.partition(".")[2]
        if name in ("at_risk", "late", "on_track"):
            others.append(HistoryEntry(f"sla-{name}", event.created_at))
        elif name in ("paused", "resumed", "changed", "closed"):
            others.append(HistoryEntry(name, event.created_at, event.key_name, _changed(event.data)))
    return sorted(statuses + others, key=lambda step: step.at)


def _changed(data: Mapping[str, Any]) -> str:
    parts = [f"window {data['completion_window']}"] if "completion_window" in data else []
    parts += [f"priority {data['priority']}"] if "priority" in data else []
    if "name" in data or "metadata" in data:
        parts.append("name" if "name" in data else "description")
    return ", ".join(parts)


def _before(batch: BatchObject) -> dict[str, tuple[str, int]]:
    """Return name and due time of the batches that a waiting one names, by id."""
    state = batch.batchyard.state
    ids = {*state.behind_ids, *filter(None, [state.next_id])} if state else set()
    with current_context().database.read() as session:
        return {
            other.id: (title(other), deadlines.deadline(other))
            for other in batches.by_ids(session, caller().project_id, ids)
        }


def json_artifacts(batch: Batch, *endings: str) -> dict[str, dict[str, Any]]:
    """Return the artifacts with these endings of their names: JSON objects of at most MAX_SUMMARY_BYTES."""
    context = current_context()
    with context.database.read() as session:
        names = [one.name for one, _ in batches.artifacts(session, [batch.id])[batch.id]]
        names = [name for name in names if name.endswith(endings)]
        found = {name: batches.find_artifact(session, batch.project_id, batch.id, name) for name in names}
    documents = {
        name: json.loads(context.artifacts.read(file.sha256))
        for name, file in found.items()
        if file is not None and file.bytes <= MAX_SUMMARY_BYTES
    }
    return {name: document for name, document in documents.items() if isinstance(document, dict)}


@routes.get("/input")
def download_input(batch_id: str) -> Response:
    return send(get_file(get_batch(batch_id).input_file_id))


@routes.get("/artifacts/<name>")
def download(batch_id: str, name: str) -> Response:
    with current_context().database.read() as session:
        file = batches.find_artifact(session, caller().project_id, batch_id, name)
    if file is None:
        raise NotFoundError(f"No artifact '{name}' of batch '{batch_id}' found.")
    return send(file)


@routes.post("/cancel", endpoint="cancel")
@routes.post("/pause", endpoint="pause")
@routes.post("/resume", endpoint="resume")
def _control(batch_id: str) -> ResponseReturnValue:
    return _redirect(control(BATCHES, batch_id, cast(Verb, flask.request.path.rpartition("/")[2])))


@routes.post("/change")
def change(batch_id: str) -> ResponseReturnValue:
    """Set what the form has: of a batch that has ended only its name and description."""
    fields = {name: text.strip() for name, text in flask.request.form.items() if name in ChangeBatch.model_fields}
    return _redirect(apply(batch_id, validated(ChangeBatch, {name: text or None for name, text in fields.items()})))


@routes.post("/retry")
def retry(batch_id: str) -> ResponseReturnValue:
    """Create a batch of the requests without a successful answer, with the corrections of the form's file, if any."""
    original, part = get_batch(batch_id), flask.request.files.get("file")
    if "corrected" in flask.request.form:
        return _redirect(retry_once(original, _corrected(flask.request.form["corrected"])))
    if part is None:
        return _redirect(retry_once(original))
    upload = uploaded() if part.filename else None
    if upload is None:
        raise missing("file")
    upload[0].commit()
    return _redirect(retry_once(original, upload[0]))


def _corrected(text: str) -> ArtifactWriter:
    """Store a request of the page of the line that it replaces. Raises RequestError."""
    try:
        request = {"line": flask.request.form.get("line", type=int), **json_lines.loads(text)}
    except (orjson.JSONDecodeError, TypeError) as error:
        message = f"The request is not a JSON object: {error}."
        raise RequestError(message, code="invalid_json", param="corrected") from None
    with current_context().artifacts.create() as writer:
        writer.write(json_lines.line(request))
    return writer


def retry_once(original: Batch, corrected: ArtifactWriter | None = None) -> Batch:
    """Return a new batch of the unanswered and failed requests of `original`, one if a form is sent twice.

    Raises ConflictError: the batch has not ended, or all its requests succeeded; RequestError: a corrected line is of
    no such request.
    """
    context = current_context()

    def draft() -> submission.Draft:
        fixed = None if corrected is None else Corrections(context, corrected)
        return submission.retry(context, original, retry_input.write(context, original, fixed=fixed))

    content = original.id if corrected is None else f"{original.id}-{corrected.sha256}"
    return create_once(forms.idempotency("retry", content), draft)[0]


@routes.post("/verify")
def verify(batch_id: str) -> ResponseReturnValue:
    """Create a batch that asks a sample of the requests again."""
    fields = flask.request.form
    options = {"sample": fields.get("sample"), "alone": "alone" in fields, "replica": fields.get("replica") or None}
    body = validated(VerifyBatch, options)
    return _redirect(verify_once(forms.idempotency("verify", batch_id), batch_id, body)[0])


def _redirect(batch: Batch) -> ResponseReturnValue:
    return flask.redirect(flask.url_for("pages.batches.show", batch_id=batch.id), 303)
