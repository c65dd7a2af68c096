"""What clients may change of schedules: their definition, and whether they are paused."""

import io
from collections.abc import Mapping
from typing import Any

from batchyard import cron
from batchyard.errors import RequestError
from store import events, schedules
from store.keys import Principal
from store.records import Schedule, now
from tasks.context import AppContext
from tasks.intake import submission
from tasks.port import port
from tasks.recurring import run_templates


def define(
    context: AppContext,
    project_id: str,
    fields: Mapping[str, Any],
    old: Schedule | None = None,
    *,
    prompts: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a schedule's values for the fields of a request; others stay as in `old`. Raises RequestError.

    `prompts`: what people wrote in a form for the template of `fields`.
    """

    def field(name: str) -> Any:
        return fields[name] if name in fields else getattr(old, name)

    values = dict(fields)
    times = cron.parse(field("cron"), field("timezone"))
    if fields.keys() & {"cron", "timezone"}:
        values["next_run_at"] = None if field("paused") else times.next(now())
    of_job = "job" in fields if old is None else old.job is not None
    other = "batch" if of_job else "job"
    if other in fields:
        message = f"A schedule makes either batches or jobs, and this one does not make what '{other}' describes."
        raise RequestError(message, code="invalid_value", param=other)
    for template in (fields[kind] for kind in ("batch", "job") if kind in fields):
        submission.check_options(context.settings, project_id, template)
    if "batch" in fields:
        submission.check_window(context.settings, fields["batch"]["completion_window"])
        submission.check_endpoint(context.models, fields["batch"]["endpoint"])
    if "job" in fields:
        values |= {"batch": {}} if old is None else {}
        try:
            port().check_template(context, project_id, fields["job"])
        except RequestError as error:
            raise RequestError(error.message, code=error.code, param=f"job.{error.param}") from None
    text = None
    if "input" in fields:
        text = fields["input"]["template"]
    elif "batch" in fields and old is not None:
        text = run_templates.template(context, old)
    if text is not None and of_job:
        port().check_rows(io.BytesIO(run_templates.fill(text, times, now()).encode()))
    elif text is not None:
        run_templates.check_template(context, field("batch")["endpoint"], text, times)
    if "input" in fields:
        pinned = run_templates.pin(context, project_id, fields["input"], of_job=of_job)
        values["input"], values["input_sha256"] = pinned
        values["input"] |= {"prompts": dict(prompts)} if prompts else {}
    if values.get("input", {"kind": None} if old is None else old.input)["kind"] == "watch":
        if field("overlap") == "cancel_previous":
            message = "A schedule that watches a folder lets the batches of different objects overlap."
            raise RequestError(message, code="invalid_value", param="overlap")
        values["overlap"] = "allow"
        folder = (values.get("input") or field("input"))["url"].rpartition("/")[0]
        steps = field("job" if of_job else "batch")["post_process"]
        if any(str(step.get("url")).rstrip("/") == folder for step in steps):
            message = "Files in the watched folder are new objects, so runs would never end; export to another folder."
            raise RequestError(message, code="invalid_value", param="post_process")
    return values


def set_paused(context: AppContext, by: Principal, schedule_id: str, *, paused: bool) -> Schedule:
    """Pause a schedule, or resume it from its next time. Raises NotFoundError."""
    with context.database.write() as session:
        schedule = schedules.get(session, by.project_id, schedule_id, lock=True)
        if schedule.paused == paused:
            return schedule
        events.act(session, by, "schedule.changed", schedule.id, paused=paused)
        next_run_at = None if paused else cron.parse(schedule.cron, schedule.timezone).next(now())
        return schedules.change(session, schedule, paused=paused, next_run_at=next_run_at)
