"""/schedules: recurring batches, with their next and past runs."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard import cron
from batchyard.errors import RequestError
from store import events, files, schedules
from store.records import Schedule, now
from tasks.recurring import run_templates
from tasks.recurring import schedules as recurring
from webapp.pages import forms
from webapp.pages.forms import PageParams, Problem
from webapp.requests import caller, current_context, query, validated
from webapp.schedules import NEXT_RUNS, CreateSchedule, make, to_wire

routes = Blueprint("schedules", __name__, url_prefix="/schedules")

FILES = 100
"""The number of newest files offered as the input of a new schedule."""
LAST_RUNS = 3


@routes.get("")
def show() -> ResponseReturnValue:
    params, project_id = query(PageParams), caller().project_id
    with current_context().database.read() as session:
        records, has_more = schedules.page(session, project_id, after=params.after, limit=params.limit)
        runs = {schedule.id: schedules.runs(session, schedule, after=None, limit=LAST_RUNS)[0] for schedule in records}
    return flask.render_template(
        "schedules.html",
        schedules=to_wire(records),
        runs=runs,
        has_more=has_more,
        limit=params.limit,
        local=_local,
    )


@routes.get("/<schedule_id>")
def show_one(schedule_id: str) -> ResponseReturnValue:
    """Show one schedule with all its runs."""
    params, context = query(PageParams), current_context()
    with context.database.read() as session:
        schedule = schedules.get(session, caller().project_id, schedule_id)
        runs, has_more = schedules.runs(session, schedule, after=params.after, limit=params.limit)
    return flask.render_template(
        "schedule.html",
        schedule=to_wire([schedule])[0],
        runs=runs,
        has_more=has_more,
        limit=params.limit,
        template=run_templates.template(context, schedule),
        local=_local,
    )


@routes.get("/new")
def show_new() -> ResponseReturnValue:
    return _form()


@routes.post("")
def create() -> ResponseReturnValue:
    try:
        schedule = make(validated(CreateSchedule, _body()))
    except RequestError as error:
        return _form(Problem.of(error)), error.status
    return _redirect(schedule)


@routes.post("/new/preview")
def look() -> ResponseReturnValue:
    """Show the next times of an expression. For htmx: only those; without scripts: the page with them."""
    fields = flask.request.form
    times, problem = [], None
    try:
        times = _next_times(fields.get("cron", ""), fields.get("timezone", ""))
    except RequestError as error:
        problem = Problem.of(error)
    if flask.request.headers.get("HX-Request"):
        return flask.render_template("schedule_preview.html", times=times, problem=problem)
    return _form(problem, times)


@routes.post("/<schedule_id>/pause")
def pause(schedule_id: str) -> ResponseReturnValue:
    return _redirect(recurring.set_paused(current_context(), caller(), schedule_id, paused=True))


@routes.post("/<schedule_id>/resume")
def resume(schedule_id: str) -> ResponseReturnValue:
    return _redirect(recurring.set_paused(current_context(), caller(), schedule_id, paused=False))


@routes.post("/<schedule_id>/run")
def run(schedule_id: str) -> ResponseReturnValue:
    """Run a schedule now, then redirect to the run's batch or job or, without one, to the schedule."""
    new_run = recurring.run_now(current_context(), caller().project_id, schedule_id)
    if new_run.batch_id is not None:
        return flask.redirect(flask.url_for("pages.batches.show", batch_id=new_run.batch_id), 303)
    if new_run.job_id is not None:
        return flask.redirect(flask.url_for("pages.jobs.show", job_id=new_run.job_id), 303)
    return flask.redirect(flask.url_for("pages.schedules.show_one", schedule_id=schedule_id), 303)


@routes.post("/<schedule_id>/delete")
def delete(schedule_id: str) -> ResponseReturnValue:
    with current_context().database.write() as session:
        schedules.delete(session, caller().project_id, schedule_id)
        events.act(session, caller(), "schedule.deleted", schedule_id)
    return flask.redirect(flask.url_for("pages.schedules.show"), 303)


def _redirect(schedule: Schedule) -> ResponseReturnValue:
    return flask.redirect(flask.url_for("pages.schedules.show_one", schedule_id=schedule.id), 303)


def _local(at: int, timezone: str) -> str:
    """Format a Unix time in a time zone."""
    return datetime.fromtimestamp(at, ZoneInfo(timezone)).strftime("%a %Y-%m-%d %H:%M %Z")


def _next_times(expression: str, timezone: str) -> list[str]:
    """Return the next times of a cron expression for display. Raises RequestError."""
    times = cron.parse(expression.strip(), timezone.strip())
    return [_local(time, timezone.strip()) for time in islice(times.after(now()), NEXT_RUNS)]


def _body() -> dict[str, Any]:
    """Return the form as the body of POST /v1/schedules. Raises RequestError."""
    fields = flask.request.form
    values = {name: fields.get(name, "").strip() for name in ("name", "cron", "timezone", "overlap", "catch_up")}
    # Browsers send the line breaks of a text area as CR LF.
    template = fields.get("template", "").replace("\r\n", "\n")
    sources = {"file_id": fields.get("file_id"), "template": template if template.strip() else None}
    sources = {name: value for name, value in sources.items() if value}
    if len(sources) != 1:
        raise RequestError("Choose a file, or write a template: one of them.", param="input.file_id")
    return {
        **values,
        "input": sources,
        "batch": {"endpoint": fields.get("endpoint"), **forms.batch_options(fields)},
    }


def _form(problem: Problem | None = None, times: list[str] | None = None) -> str:
    with current_context().database.read() as session:
        records, _ = files.page(session, caller().project_id, after=None, limit=FILES, descending=True, purpose="batch")
    return flask.render_template(
        "schedule_new.html",
        fields=flask.request.form,
        problem=problem,
        times=times or [],
        files=records,
        zones=cron.zones(),
        **forms.template_context(),
    )
