"""/batches/<id>: one batch, what was answered, and what can be done with it."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import flask
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from batchyard.errors import NotFoundError, RequestError, UnavailableError
from batchyard.statuses import TERMINAL
from store import batches, events, files, segments
from store.formats.results import Row
from store.records import Batch, Event
from tasks.finishing import result_previews
from tasks.finishing.result_previews import Cursor, Problems
from tasks.intake import retry_input, submission
from webapp.batches import announce, once, to_wire
from webapp.files import send
from webapp.requests import caller, current_context

routes = Blueprint("batches", __name__, url_prefix="/batches/<batch_id>")

ROWS = 20
TEXT = 400
"""Characters shown of a request or an answer; files have all of it."""
PLACE = re.compile(r"[0-9]{1,15}(-[0-9]{1,15}){3}|[0-9]{1,15}", re.ASCII)
"""Where more requests begin: how many answers came before, or in an ended batch an excerpts.Cursor."""
MAX_EVENTS = 20
MIN_RATE_SECONDS = 10.0
MAX_SUMMARY_BYTES = 256 * 1024
STEPS = ("created", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled")


def _get(batch_id: str) -> Batch:
    with current_context().database.read() as session:
        return batches.get(session, caller().project_id, batch_id)


@routes.get("")
def show(batch_id: str) -> ResponseReturnValue:
    """The page, or for htmx what changes on it; of a batch that has ended meanwhile, that the page is another now."""
    context = current_context()
    batch = _get(batch_id)
    live = "HX-Request" in flask.request.headers
    if live and batch.status in TERMINAL:
        return Response(headers={"HX-Refresh": "true"})
    with context.database.read() as session:
        timeline = segments.timeline(session, batch)
        happened, _ = events.page(session, batch, after=None, limit=MAX_EVENTS)
        names = files.names(session, {batch.input_file_id})
        source = files.find(session, batch.project_id, batch.input_file_id)
    shown: dict[str, Any] = {
        "now": time.time(),
        "batch": to_wire([batch])[0],
        "name": names[batch.input_file_id],
        "source": source,
        "ended": batch.status in TERMINAL,
        "steps": _steps(batch, happened),
        "series": _series(timeline),
    }
    if live:
        return flask.render_template("batch_live.html", **shown)
    return flask.render_template(
        "batch.html",
        **shown,
        **_excerpt(batch, _first_place(batch)),
        problems=_problems(batch),
        summaries=_summaries(batch),
        once=secrets.token_hex(16),
    )


def _steps(batch: Batch, happened: Sequence[Event]) -> list[tuple[str, int]]:
    """What has become of a batch, with times; warnings of its deadline among them."""
    found = [(step, at) for step in STEPS if (at := getattr(batch, f"{step}_at")) is not None]
    states = [event.type.removeprefix("batch.") for event in happened]
    warnings = [
        (f"sla-{state}", event.created_at)
        for state, event in zip(states, happened, strict=True)
        if state in ("at_risk", "late", "on_track")
    ]
    return sorted(found + warnings, key=lambda step: step[1])


def _series(timeline: list[list[float]]) -> str:
    """What the chart is drawn from, as JSON: times, requests answered until then, and rows a second lately."""
    if len(timeline) < 2:
        return ""
    times, answered = [point[0] for point in timeline], [point[1] for point in timeline]
    # Parts come by leaps, of several segments at once: only over a while they tell a speed.
    lately = max(MIN_RATE_SECONDS, (times[-1] - times[0]) / 30)
    rates: list[float | None] = [None]
    start = 0
    for end in range(1, len(times)):
        while start + 1 < end and times[end] - times[start + 1] >= lately:
            start += 1
        rates.append(round((answered[end] - answered[start]) / max(times[end] - times[start], 0.1), 1))
    return json.dumps([times, answered, rates])


class _Pair(NamedTuple):
    """A request and its answer as they are shown; cut where they are long."""

    row: Row
    asked: list[tuple[str, str]]
    answer: str
    error: bool


def _cut(text: str) -> str:
    more = len(text) - TEXT
    return text if more <= 0 else f"{text[:TEXT]}… and {more:,} more characters"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def _pair(row: Row) -> _Pair:
    """What was asked, with the role of each message, and what was answered."""
    messages = row.body.get("messages")
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        asked = [(str(message.get("role", "")), _cut(_text(message.get("content")))) for message in messages[-2:]]
    else:
        asked = [("", _cut(_text(row.body.get("prompt", row.body.get("input", row.body)))))] if row.body else []
    if row.text is not None:
        return _Pair(row, asked, _cut(row.text), error=False)
    said = row.error or (row.response or {}).get("error") or row.response
    message = said["message"] if isinstance(said, dict) and isinstance(said.get("message"), str) else _text(said)
    return _Pair(row, asked, _cut(message) if said else "", error=row.status_code != 200)


def _first_place(batch: Batch) -> Cursor | int:
    return Cursor() if batch.status in TERMINAL else 0


def _excerpt(batch: Batch, at: Cursor | int) -> dict[str, Any]:
    """A few requests with their answers, from a place on, and where the next ones are, as the template takes them."""
    context = current_context()
    rows: list[Row] = []
    following: Cursor | int | None = None
    try:
        if batch.plan_sha256 is None:
            pass  # its requests are not known yet, or cannot be read
        elif isinstance(at, int):
            rows, following = result_previews.as_they_came(context, batch, at, ROWS)
        else:
            rows, following = result_previews.in_order(context, batch, at, ROWS)
    except (NotFoundError, UnavailableError) as error:
        return {"pairs": [], "more": None, "gone": error.message}
    more = "-".join(map(str, [following] if isinstance(following, int) else following)) if following else None
    return {"pairs": [_pair(row) for row in rows], "more": more, "gone": None}


@routes.get("/requests")
def requests(batch_id: str) -> ResponseReturnValue:
    """More requests with their answers: a page, or for htmx only them."""
    batch = _get(batch_id)
    asked = flask.request.args.get("at", "")
    if not PLACE.fullmatch(asked):
        raise RequestError("There is no such place in this batch.", code="invalid_value", param="at")
    numbers = [int(number) for number in asked.split("-")]
    at = Cursor(*numbers) if len(numbers) > 1 else numbers[0]
    template = "requests.html" if "HX-Request" in flask.request.headers else "requests_page.html"
    return flask.render_template(template, batch=batch, **_excerpt(batch, at))


def _problems(batch: Batch) -> Problems | None:
    context = current_context()
    if batch.errors:
        return result_previews.of_validation(batch.errors)
    if batch.status not in TERMINAL:
        return result_previews.of_running(context, batch) if batch.failed else None
    with context.database.read() as session:
        file = files.find(session, batch.project_id, batch.error_file_id or "")
    return result_previews.of_file(context.artifacts, file.sha256, batch.input_sha256) if file else None


def _summaries(batch: Batch) -> dict[str, dict[str, Any]]:
    """What post-processing steps have summed up, by artifact: small JSON objects."""
    context = current_context()
    with context.database.read() as session:
        names = [artifact.name for artifact, _ in batches.artifacts(session, [batch.id])[batch.id]]
        summaries = [name for name in names if name.endswith("-summary.json")]
        found = {name: files.find_artifact(session, batch.project_id, batch.id, name) for name in summaries}
    read = {
        name: json.loads(context.artifacts.read(file.sha256))
        for name, file in found.items()
        if file is not None and file.bytes <= MAX_SUMMARY_BYTES
    }
    return {name: summary for name, summary in read.items() if isinstance(summary, dict)}


@routes.get("/input")
def download_input(batch_id: str) -> Response:
    batch = _get(batch_id)
    with current_context().database.read() as session:
        return send(files.get(session, batch.project_id, batch.input_file_id))


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
    return _to(batch)


@routes.post("/retry")
def retry(batch_id: str) -> ResponseReturnValue:
    """Make a batch of the requests that have no good answer."""
    owner, context, old = caller(), current_context(), _get(batch_id)
    left = retry_input.write(context, old)
    with once(owner, _form(old, "retry")) as (session, existing):
        batch = existing or submission.retry(context, session, old, left, idempotency=_form(old, "retry"))
    if existing is None:
        announce(batch)
    return _to(batch)


@routes.post("/repeat")
def repeat(batch_id: str) -> ResponseReturnValue:
    """Make a batch of the same file with the same options."""
    owner, context, old = caller(), current_context(), _get(batch_id)
    with once(owner, _form(old, "repeat")) as (session, existing):
        source = submission.input_file(session, owner.project_id, old.input_file_id)
        batch = existing or submission.repeat(
            context, session, old, input_file=source, idempotency=_form(old, "repeat")
        )
    if existing is None:
        announce(batch)
    return _to(batch)


def _form(batch: Batch, what: str) -> tuple[str, str] | None:
    """The idempotency key of a form that was shown once: sent twice, it makes one batch."""
    key = flask.request.form.get("once")
    return (f"page-{what}-{key[:64]}", batch.id) if key else None


def _to(batch: Batch) -> ResponseReturnValue:
    return flask.redirect(flask.url_for("pages.batches.show", batch_id=batch.id), 303)
