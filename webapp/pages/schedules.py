"""/schedules: recurring batches, when they run next, and the runs they have had."""

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
from store import files, schedules
from store.records import Schedule, now
from tasks.recurring import run_templates
from tasks.recurring import schedules as recurring
from webapp.pages import forms
from webapp.pages.forms import Older, Problem
from webapp.requests import caller, current_context, query, validated
from webapp.schedules import NEXT_RUNS, CreateSchedule, make, to_wire

routes = Blueprint("schedules", __name__, url_prefix="/schedules")

FILES = 100
"""The newest files, of which a new schedule can be made."""
LAST_RUNS = 3


@routes.get("")
def show() -> ResponseReturnValue:
    asked, project_id = query(Older), caller().project_id
    with current_context().database.read() as session:
        found, more = schedules.page(session, project_id, after=asked.after, limit=asked.limit)
        runs = {schedule.id: schedules.runs(session, schedule, after=None, limit=LAST_RUNS)[0] for schedule in found}
    return flask.render_template(
        "schedules.html",
        schedules=to_wire(found),
        runs=runs,
        more=more,
        limit=asked.limit,
        local=_local,
    )


@routes.get("/<schedule_id>")
def show_one(schedule_id: str) -> ResponseReturnValue:
    """One schedule, with all its runs."""
    asked, context = query(Older), current_context()
    with context.database.read() as session:
        schedule = schedules.get(session, caller().project_id, schedule_id)
        runs, more = schedules.runs(session, schedule, after=asked.after, limit=asked.limit)
    return flask.render_template(
        "schedule.html",
        schedule=to_wire([schedule])[0],
        runs=runs,
        more=more,
        limit=asked.limit,
        template=run_templates.template(context, schedule),
        local=_local,
    )


@routes.get("/new")
def show_new() -> ResponseReturnValue:
    return _form()


@routes.post("")
def create() -> ResponseReturnValue:
    try:
        schedule = make(validated(CreateSchedule, _said()))
    except RequestError as error:
        return _form(Problem.of(error)), error.status
    return _to(schedule)


@routes.post("/new/preview")
def look() -> ResponseReturnValue:
    """The next times of an expression: a part of the page that is there already or, without scripts, a new one."""
    typed = flask.request.form
    times, problem = [], None
    try:
        times = _next(typed.get("cron", ""), typed.get("timezone", ""))
    except RequestError as error:
        problem = Problem.of(error)
    if flask.request.headers.get("HX-Request"):
        return flask.render_template("schedule_preview.html", times=times, problem=problem)
    return _form(problem, times)


@routes.post("/<schedule_id>/pause")
def pause(schedule_id: str) -> ResponseReturnValue:
    return _to(recurring.set_paused(current_context(), caller().project_id, schedule_id, paused=True))


@routes.post("/<schedule_id>/resume")
def resume(schedule_id: str) -> ResponseReturnValue:
    return _to(recurring.set_paused(current_context(), caller().project_id, schedule_id, paused=False))


@routes.post("/<schedule_id>/run")
def run(schedule_id: str) -> ResponseReturnValue:
    """Run a schedule now; on to its batch, if there is one."""
    made = recurring.run_now(current_context(), caller().project_id, schedule_id)
    if made.batch_id is not None:
        return flask.redirect(flask.url_for("pages.batches.show", batch_id=made.batch_id), 303)
    return flask.redirect(flask.url_for("pages.schedules.show_one", schedule_id=schedule_id), 303)


@routes.post("/<schedule_id>/delete")
def delete(schedule_id: str) -> ResponseReturnValue:
    with current_context().database.write() as session:
        schedules.delete(session, caller().project_id, schedule_id)
    return flask.redirect(flask.url_for("pages.schedules.show"), 303)


def _to(schedule: Schedule) -> ResponseReturnValue:
    return flask.redirect(flask.url_for("pages.schedules.show_one", schedule_id=schedule.id), 303)


def _local(moment: int, timezone: str) -> str:
    """A time as the clocks of a zone show it."""
    return datetime.fromtimestamp(moment, ZoneInfo(timezone)).strftime("%a %Y-%m-%d %H:%M %Z")


def _next(expression: str, timezone: str) -> list[str]:
    """The next times of an expression. Raises RequestError."""
    times = cron.parse(expression.strip(), timezone.strip())
    return [_local(time, timezone.strip()) for time in islice(times.after(now()), NEXT_RUNS)]


def _said() -> dict[str, Any]:
    """What was typed, as an API client would write it. Raises RequestError."""
    typed = flask.request.form
    given = {name: typed.get(name, "").strip() for name in ("name", "cron", "timezone", "overlap", "catch_up")}
    # The text of a text area has a carriage return before each line feed.
    template = typed.get("template", "").replace("\r\n", "\n")
    source = {"file_id": typed.get("file_id"), "template": template if template.strip() else None}
    chosen = {name: value for name, value in source.items() if value}
    if len(chosen) != 1:
        raise RequestError("Choose a file, or write a template: one of them.", param="input.file_id")
    return {
        **given,
        "input": chosen,
        "batch": {"endpoint": typed.get("endpoint"), **forms.batch_options(typed)},
    }


def _form(problem: Problem | None = None, times: list[str] | None = None) -> str:
    with current_context().database.read() as session:
        found, _ = files.page(session, caller().project_id, after=None, limit=FILES, descending=True, purpose="batch")
    return flask.render_template(
        "schedule_new.html",
        typed=flask.request.form,
        problem=problem,
        times=times or [],
        files=found,
        zones=cron.zones(),
        **forms.template_context(),
    )
