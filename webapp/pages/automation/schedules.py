"""/schedules: recurring batches and jobs, with their next and past runs, and how each of these ended."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice, pairwise
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import flask
from cronsim.explain import explain
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard import cron
from batchyard.errors import RequestError
from store import batches, files, schedules
from store.jobs import lifecycle
from store.records import Batch, Job, Schedule, ScheduleRun, now
from tasks.recurring import definitions, run_templates
from tasks.recurring import schedules as recurring
from webapp.pages import forms
from webapp.pages.automation import schedule_form
from webapp.pages.formats import short
from webapp.pages.forms import PageParams, Problem
from webapp.requests import caller, current_context, listed, validated
from webapp.schedules import NEXT_RUNS, change, get_schedule, make, planner, remove, to_wire
from webapp.wire.schedules import CreateSchedule, UpdateSchedule

routes = Blueprint("schedules", __name__, url_prefix="/schedules")

FILES = 100
LAST_RUNS = 3
_ORDINALS = {"1": "st", "2": "nd", "3": "rd"}


@routes.get("")
def show() -> ResponseReturnValue:
    records, has_more = listed(schedules.page, PageParams, caller().project_id)
    with current_context().database.read() as session:
        runs = {schedule.id: schedules.runs(session, schedule, after=None, limit=LAST_RUNS)[0] for schedule in records}
    return flask.render_template(
        "schedules.html",
        schedules=to_wire(records),
        runs=runs,
        has_more=has_more,
        **_of_runs([run for of_schedule in runs.values() for run in of_schedule]),
    )


@routes.get("/<schedule_id>")
def show_one(schedule_id: str) -> ResponseReturnValue:
    schedule = get_schedule(schedule_id)
    runs, has_more = listed(schedules.runs, PageParams, schedule)
    variables = _of_runs(runs)
    batch_ids = [run.batch_id for run in runs if run.batch_id in variables["made"]]
    return flask.render_template(
        "schedule.html",
        before=dict(pairwise(batch_ids)),
        schedule=to_wire([schedule])[0],
        runs=runs,
        has_more=has_more,
        template=run_templates.template(current_context(), schedule),
        **variables,
    )


def _of_runs(runs: Sequence[ScheduleRun]) -> dict[str, Any]:
    """Return the variables of templates that show runs: the batches and jobs that these made, and names of jobs."""
    project_id = caller().project_id
    with current_context().database.read() as session:
        works: list[Batch | Job] = [
            *batches.by_ids(session, project_id, {run.batch_id for run in runs if run.batch_id}),
            *lifecycle.by_ids(session, project_id, {run.job_id for run in runs if run.job_id}),
        ]
    return {
        "made": {work.id: work for work in works},
        "names": {work.id: work.name or short(work.id) for work in works},
        "local": _local,
        "words": _words,
    }


@routes.post("")
def create() -> ResponseReturnValue:
    try:
        schedule = make(validated(CreateSchedule, schedule_form.body()), schedule_form.prompts_sent())
    except RequestError as error:
        return _form(problem=schedule_form.problem_of(error)), error.status
    return _redirect(schedule)


@routes.get("/<schedule_id>/edit")
def edit(schedule_id: str) -> ResponseReturnValue:
    return _form(get_schedule(schedule_id))


@routes.post("/<schedule_id>/edit")
def update(schedule_id: str) -> ResponseReturnValue:
    schedule = get_schedule(schedule_id)
    try:
        change(schedule, validated(UpdateSchedule, schedule_form.body(schedule)), schedule_form.prompts_sent())
    except RequestError as error:
        return _form(schedule, schedule_form.problem_of(error)), error.status
    return _redirect(schedule)


@routes.post("/new/preview")
def look() -> ResponseReturnValue:
    """Show an expression in words, and its next times. For htmx: only those; without scripts: the page with them."""
    fields = flask.request.form
    expression, timezone = fields.get("cron", "").strip(), fields.get("timezone", "").strip()
    variables, problem = dict[str, Any](), None
    try:
        times = islice(cron.parse(expression, timezone).after(now()), NEXT_RUNS)
        variables = {"times": [_local(time, timezone) for time in times], "in_words": _words(expression)}
    except RequestError as error:
        problem = Problem.of(error)
    if flask.request.headers.get("HX-Request"):
        return flask.render_template("schedule_preview.html", problem=problem, **variables)
    schedule = get_schedule(fields["schedule_id"]) if fields.get("schedule_id") else None
    return _form(schedule, problem, variables)


@routes.post("/<schedule_id>/pause", endpoint="pause")
@routes.post("/<schedule_id>/resume", endpoint="resume")
def _set_paused(schedule_id: str) -> ResponseReturnValue:
    paused = flask.request.path.endswith("/pause")
    owner = caller() if paused else planner()
    return _redirect(definitions.set_paused(current_context(), owner, schedule_id, paused=paused))


@routes.post("/<schedule_id>/run")
def run(schedule_id: str) -> ResponseReturnValue:
    """Run a schedule now, then redirect to the run's batch or job or, without one, to the schedule."""
    new_run = recurring.run_now(current_context(), planner().project_id, schedule_id)
    if new_run.batch_id is not None:
        return flask.redirect(flask.url_for("pages.batches.show", batch_id=new_run.batch_id), 303)
    if new_run.job_id is not None:
        return flask.redirect(flask.url_for("pages.jobs.show", job_id=new_run.job_id), 303)
    return flask.redirect(flask.url_for("pages.schedules.show_one", schedule_id=schedule_id), 303)


@routes.post("/<schedule_id>/delete")
def delete(schedule_id: str) -> ResponseReturnValue:
    remove(schedule_id)
    return flask.redirect(flask.url_for("pages.schedules.show"), 303)


def _redirect(schedule: Schedule) -> ResponseReturnValue:
    return flask.redirect(flask.url_for("pages.schedules.show_one", schedule_id=schedule.id), 303)


def _local(at: int, timezone: str) -> str:
    return datetime.fromtimestamp(at, ZoneInfo(timezone)).strftime("%a %Y-%m-%d %H:%M %Z")


def _words(expression: str) -> str:
    # cronsim says 21th.
    return re.sub(r"\b([23])([123])th\b", lambda day: day[1] + day[2] + _ORDINALS[day[2]], explain(expression))


@routes.get("/new", endpoint="show_new")
def _form(
    schedule: Schedule | None = None, problem: Problem | None = None, preview: Mapping[str, Any] = MappingProxyType({})
) -> str:
    with current_context().database.read() as session:
        records, _ = files.page(session, caller().project_id, after=None, limit=FILES, descending=True, purpose="batch")
    fields: Mapping[str, str] = flask.request.form
    if not fields and schedule is not None:
        fields = schedule_form.fields_of(schedule)
    return flask.render_template(
        "schedule_form.html",
        schedule=schedule,
        fields=fields,
        problem=problem,
        files=records,
        zones=cron.zones(),
        **preview,
        **forms.template_context(),
    )
