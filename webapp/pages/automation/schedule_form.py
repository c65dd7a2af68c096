"""The form of a schedule: its fields as a request body, and a schedule as its fields."""

import io
import json
from collections.abc import Mapping
from typing import Any

import flask

from batchyard.errors import RequestError
from batchyard.tables.formats import Format
from store.records import Schedule
from tasks.intake import inputs, prompts
from tasks.intake.prompts import RequestTemplate
from tasks.recurring import run_templates
from webapp.intake import start
from webapp.pages import forms
from webapp.pages.forms import Problem
from webapp.requests import current_context, validated
from webapp.wire.start import PARAMETERS, Start

SHOWN = 200_000
"""Longest template that stands in the form, in characters. A form that is sent has at most 500 kB."""
_SAME = ("name", "cron", "timezone", "overlap", "catch_up")


def body(old: Schedule | None = None) -> dict[str, Any]:
    """Return the form as the body of POST /v1/schedules; of `old`, only what it changes. Raises RequestError."""
    fields = flask.request.form
    values: dict[str, Any] = {name: fields.get(name, "").strip() for name in _SAME}
    options = forms.batch_options(fields)
    if old is not None and old.job is not None:
        changes = {name: options[name] for name in ("completion_window", "metadata")}
        return values | {"job": old.job | changes}
    source = _source(fields, old)
    if source is not None:
        values["input"] = source
    endpoint = forms.prompt_options(fields)["endpoint"] if _of_prompts(fields) else fields.get("endpoint")
    kept = None if old is None else old.batch.get("output_expires_after")
    return values | {"batch": {**options, "endpoint": endpoint, "output_expires_after": kept}}


def _of_prompts(fields: Mapping[str, str]) -> bool:
    return fields.get("holds") == "prompts"


def _source(fields: Mapping[str, str], old: Schedule | None) -> dict[str, str] | None:
    """Return the input that the form names; None if it is that of `old`. Raises RequestError."""
    template, file_id = forms.text(fields, "template"), fields.get("file_id", "")
    if _of_prompts(fields):
        template, file_id = _requests(fields), ""
    if not template.strip() and not file_id and old is not None and not _shows_input(old):
        return None
    if bool(template.strip()) == bool(file_id):
        raise RequestError("Choose a file, or write a template: one of them.", param="input.file_id")
    if old is not None and (file_id == old.input["file_id"] if file_id else _is_template(template, old)):
        return None
    return {"file_id": file_id} if file_id else {"template": template}


def _requests(fields: Mapping[str, str]) -> str:
    """Return the form's prompts as the lines of a batch file. Raises RequestError."""
    options = validated(Start, forms.prompt_options(fields, "system", *PARAMETERS))
    text = io.BytesIO(forms.text(fields, "text").encode())
    kind: Format = "prompts" if fields.get("format") == "prompts" else "txt"
    context = current_context()
    writer = inputs.of_prompts(context, start.input_options(options), prompts.of_file(text, kind, None))
    return context.artifacts.read(writer.sha256).decode()


def problem_of(error: RequestError) -> Problem:
    """Return a refusal with the field that it is about: the prompts, where the form makes the template of them."""
    problem = Problem.of(error)
    if problem.field in ("template", "file") and _of_prompts(flask.request.form):
        return Problem(problem.message.replace("of the template: ", "of the prompts: "), "text")
    return problem


def _template(schedule: Schedule) -> str | None:
    return run_templates.template(current_context(), schedule)


def _is_template(text: str, schedule: Schedule) -> bool:
    """True if a text has the requests of a schedule's template. The form's prompts make texts of their own of them."""
    template = _template(schedule)
    if template is None or text == template.replace("\r\n", "\n"):
        return template is not None
    made_of = _read_back(template) if _of_prompts(flask.request.form) else None
    return made_of is not None and made_of == _read_back(text)


def _shows_input(schedule: Schedule) -> bool:
    """True if the form has the input of a schedule, so that its absence is a change."""
    template = _template(schedule)
    return schedule.input["kind"] not in ("artifact", "url") and (template is None or len(template) <= SHOWN)


def fields_of(schedule: Schedule) -> dict[str, str]:
    """Return the fields in which a schedule stands as it is."""
    fields = {name: getattr(schedule, name) for name in _SAME}
    if schedule.job is not None:
        return fields | forms.option_fields(schedule.job | {"post_process": []})
    fields |= forms.option_fields(schedule.batch)
    fields |= {"holds": "requests", "endpoint": schedule.batch["endpoint"], "file_id": schedule.input["file_id"] or ""}
    template = _template(schedule)
    if template is None or len(template) > SHOWN:
        return fields
    return fields | (_prompt_fields(template) or {"template": template})


def _read_back(template: str) -> tuple[RequestTemplate, Format, str] | None:
    """Return what the requests of a template are made of, as prompts.read_back."""
    return prompts.read_back(line.encode() for line in template.split("\n") if line.strip())


def _prompt_fields(template: str) -> dict[str, str] | None:
    """Return the fields of prompts that make this template; None if none do."""
    made_of = _read_back(template)
    if made_of is None:
        return None
    common, kind, text = made_of
    spec = current_context().models.get(common.model)
    if spec is None or common.endpoint not in spec.endpoints or common.parameters.keys() - set(PARAMETERS):
        return None
    if common.system is not None and ("\r" in common.system or not common.system.strip()):
        return None
    parameters = {name: json.dumps(value) for name, value in common.parameters.items()}  # of a number, its digits
    run = f"{common.endpoint} {common.model}"
    return {"holds": "prompts", "run": run, "format": kind, "text": text, "system": common.system or "", **parameters}
