"""/v1/schedules: recurring batches and jobs. Create, list, retrieve, update, pause, run, delete; list their runs."""

from collections.abc import Mapping, Sequence
from datetime import UTC
from itertools import islice
from typing import Any

from flask import Blueprint, Response

from batchyard import cron
from batchyard.cron import Cron
from batchyard.errors import NotFoundError, RequestError
from store import events, schedules
from store.keys import Principal
from store.records import Schedule, ScheduleRun, now
from tasks.intake import budgets
from tasks.recurring import definitions, run_templates
from tasks.recurring import schedules as recurring
from webapp.document import operation
from webapp.requests import caller, current_context, listed, parse_body, reading, validated, writing
from webapp.wire import schedules as wire
from webapp.wire.batches import ScheduledBatch
from webapp.wire.jobs import JobOptions
from webapp.wire.lists import ListQuery

routes = Blueprint("schedules", __name__)

NEXT_RUNS = 5
_COPIED = wire.ScheduleObject.model_fields.keys() - {"object", "input", "batch", "job", "next_runs", "last_run"}
# All times fill a template with texts of the same length, so one time is enough to check the limits.
_ANY_TIME = Cron("* * * * *", UTC)


def to_wire(records: Sequence[Schedule]) -> list[wire.ScheduleObject]:
    """Return schedules as they cross the wire. The last runs are read in one query for all."""
    with current_context().database.read() as session:
        last_runs = schedules.last_runs(session, [schedule.id for schedule in records])
    return [
        wire.ScheduleObject(
            **{name: getattr(schedule, name) for name in _COPIED},
            input=wire.ScheduleInputObject(**schedule.input, sha256=schedule.input_sha256 or None),
            batch=None if schedule.job is not None else ScheduledBatch(**schedule.batch),
            job=None if schedule.job is None else JobOptions(**schedule.job),
            next_runs=[]
            if schedule.next_run_at is None
            else [*islice(cron.parse(schedule.cron, schedule.timezone).after(schedule.next_run_at - 1), NEXT_RUNS)],
            last_run=_run(last_runs[schedule.id]) if schedule.id in last_runs else None,
        )
        for schedule in records
    ]


def _run(run: ScheduleRun) -> wire.ScheduleRunObject:
    fields = wire.ScheduleRunObject.model_fields.keys() - {"object"}
    return wire.ScheduleRunObject(**{name: getattr(run, name) for name in fields})


def _object(schedule: Schedule) -> wire.ScheduleObject:
    return to_wire([schedule])[0]


def _values(body: wire.CreateSchedule | wire.UpdateSchedule) -> dict[str, Any]:
    """Return the fields that are not null. Raises RequestError if filled metadata exceeds its limits."""
    values = {name: value for name, value in body.model_dump().items() if value is not None}
    if isinstance(body, wire.CreateSchedule) and body.batch is None and body.job is None:
        message = "Missing required parameter: 'batch', or 'job'."
        raise RequestError(message, code="missing_required_parameter", param="batch")
    for kind, options in (("batch", body.batch), ("job", body.job)):
        if options is not None:
            metadata = run_templates.fill_values(options.metadata, _ANY_TIME, now())
            validated(type(body), values | {kind: values[kind] | {"metadata": metadata}})
    return values


@routes.post("/v1/schedules")
@operation(wire.ScheduleObject, json=wire.CreateSchedule, refusals=(403, 413))
def create() -> wire.ScheduleObject:
    """Make a schedule. The content of its input is kept for it, whatever becomes of the file."""
    return _object(make(parse_body(wire.CreateSchedule)))


def planner() -> Principal:
    """Return the caller. Raises PermissionDeniedError: it has a cap, which does not count what schedules run."""
    with reading() as (session, owner):
        budgets.refuse_capped(session, owner, "what a schedule runs counts for no key; use a key without a cap")
    return owner


def make(body: wire.CreateSchedule, prompts: Mapping[str, str] | None = None) -> Schedule:
    """Create a schedule. `prompts`: the fields of the form from which its template was made, to show them again."""
    owner, context = planner(), current_context()
    values = definitions.define(context, owner.project_id, _values(body), prompts=prompts)
    with context.database.write(serial=True) as session:
        schedule = schedules.create(session, owner.project_id, **values)
        events.act(session, owner, "schedule.created", schedule.id, name=schedule.name)
        return schedule


@routes.get("/v1/schedules")
@operation(wire.SchedulePage, query=ListQuery)
def list_() -> wire.SchedulePage:
    """List the project's schedules, newest first."""
    records, has_more = listed(schedules.page, ListQuery, caller().project_id)
    return wire.SchedulePage.of(to_wire(records), has_more=has_more)


def get_schedule(schedule_id: str) -> Schedule:
    with reading() as (session, owner):
        return schedules.get(session, owner.project_id, schedule_id)


@routes.get("/v1/schedules/<schedule_id>")
@operation(wire.ScheduleObject, refusals=(404,))
def retrieve(schedule_id: str) -> wire.ScheduleObject:
    """Look at a schedule."""
    return _object(get_schedule(schedule_id))


@routes.post("/v1/schedules/<schedule_id>")
@operation(wire.ScheduleObject, json=wire.UpdateSchedule, refusals=(403, 404, 409, 413))
def update(schedule_id: str) -> wire.ScheduleObject:
    """Change a schedule. Another cron expression or time zone counts from now on."""
    return _object(change(get_schedule(schedule_id), parse_body(wire.UpdateSchedule)))


def change(schedule: Schedule, body: wire.UpdateSchedule, prompts: Mapping[str, str] | None = None) -> Schedule:
    """Set what the body names of a schedule, and record who did. Raises RequestError, ConflictError."""
    owner, context = planner(), current_context()
    values = definitions.define(context, schedule.project_id, _values(body), schedule, prompts=prompts)
    with context.database.write() as session:
        schedule = schedules.change(session, schedule, **values)
        events.act(session, owner, "schedule.changed", schedule.id, fields=sorted(values))
        return schedule


@routes.delete("/v1/schedules/<schedule_id>")
@operation(wire.ScheduleDeleted, refusals=(404,))
def delete(schedule_id: str) -> wire.ScheduleDeleted:
    """Delete a schedule and the history of its runs. Their batches and jobs stay."""
    remove(schedule_id)
    return wire.ScheduleDeleted(id=schedule_id)


def remove(schedule_id: str) -> None:
    with writing() as (session, owner):
        schedules.delete(session, owner.project_id, schedule_id)
        events.act(session, owner, "schedule.deleted", schedule_id)


@routes.post("/v1/schedules/<schedule_id>/pause")
@operation(wire.ScheduleObject, refusals=(404,))
def pause(schedule_id: str) -> wire.ScheduleObject:
    """Pause a schedule. Times that pass meanwhile are not run, and are not missed."""
    return _object(definitions.set_paused(current_context(), caller(), schedule_id, paused=True))


@routes.post("/v1/schedules/<schedule_id>/resume")
@operation(wire.ScheduleObject, refusals=(403, 404))
def resume(schedule_id: str) -> wire.ScheduleObject:
    """Let a paused schedule run again, from its next time on."""
    return _object(definitions.set_paused(current_context(), planner(), schedule_id, paused=False))


@routes.post("/v1/schedules/<schedule_id>/run")
@operation(wire.ScheduleRunObject, refusals=(403, 404, 409))
def run(schedule_id: str) -> wire.ScheduleRunObject:
    """Run a schedule now, also one that is paused. Its times stay as they are."""
    return _run(recurring.run_now(current_context(), planner().project_id, schedule_id))


@routes.get("/v1/schedules/<schedule_id>/runs")
@operation(wire.ScheduleRunPage, query=ListQuery, refusals=(404,))
def runs(schedule_id: str) -> wire.ScheduleRunPage:
    """List the runs of a schedule, newest first."""
    records, has_more = listed(schedules.runs, ListQuery, get_schedule(schedule_id))
    return wire.ScheduleRunPage.of([_run(record) for record in records], has_more=has_more)


@routes.get("/v1/schedules/<schedule_id>/template")
@operation(None, media_type="application/jsonl", refusals=(404,))
def template(schedule_id: str) -> Response:
    """Download the template of a schedule whose input is one."""
    text = run_templates.template(current_context(), get_schedule(schedule_id))
    if text is None:
        raise NotFoundError(f"Schedule '{schedule_id}' has no template.", param="schedule_id")
    return Response(text, mimetype="application/jsonl")
