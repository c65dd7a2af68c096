"""The form of a schedule: its fields as a request body, and a schedule as its fields."""

import io
from collections.abc import Mapping
from typing import Any

import flask

from batchyard.errors import RequestError
from batchyard.tables.formats import Format
from store.records import Schedule
from tasks.intake import inputs, prompts
from tasks.recurring import run_templates
from webapp.intake import start
from webapp.pages import forms
from webapp.pages.forms import Problem
from webapp.requests import current_context, validated
from webapp.wire.start import PARAMETERS, Start

SHOWN = 200_000
"""Longest template that stands in the form, in characters. A form that is sent has at most 500 kB."""
_SAME = ("name", "cron", "timezone", "overlap", "catch_up")
_PROMPTS = ("endpoint", "model", "system", "format", "text", *PARAMETERS)
"""The fields that prompts become a template by."""


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
    unseen = ("output_expires_after", "callback_url", "stop_when", "guard")
    kept = {} if old is None else {name: old.batch.get(name) for name in unseen}
    return values | {"batch": {**options, "endpoint": fields.get("endpoint"), **kept}}


def _of_prompts(fields: Mapping[str, str]) -> bool:
    return fields.get("holds") == "prompts"


def prompts_sent() -> dict[str, str] | None:
    """Return the fields of the form's prompts, to show them again; None for requests, or more than SHOWN."""
    fields = flask.request.form
    keeps = _of_prompts(fields) and len(fields.get("text", "")) <= SHOWN
    return {name: forms.text(fields, name) for name in _PROMPTS} if keeps else None


def _source(fields: Mapping[str, str], old: Schedule | None) -> dict[str, str] | None:
    """Return the input that the form names; None if it is that of `old`. Raises RequestError."""
    template, file_id = forms.text(fields, "template"), fields.get("file_id", "")
    if _of_prompts(fields):
        if old is not None and (made_of := prompts_sent()) and made_of == old.input.get("prompts"):
            return None
        template, file_id = _requests(fields), ""
    is_empty = not template.strip() and not file_id
    # Where the form does not show the input of a schedule, its absence is no change.
    if is_empty and old and (old.input["kind"] in ("artifact", "url", "watch") or len(_template(old)) > SHOWN):
        return None
    if bool(template.strip()) == bool(file_id):
        raise RequestError("Choose a file, or write a template: one of them.", param="input.file_id")
    if old is not None:
        before = old.input["file_id"] if file_id else _template(old).replace("\r\n", "\n")
        if before == (file_id or template):
            return None
    return {"file_id": file_id} if file_id else {"template": template}


def _requests(fields: Mapping[str, str]) -> str:
    """Return the form's prompts as the lines of a batch file. Raises RequestError."""
    options = validated(Start, forms.filled(fields, "endpoint", "model", "system", *PARAMETERS))
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


def _template(schedule: Schedule) -> str:
    return run_templates.template(current_context(), schedule) or ""


def fields_of(schedule: Schedule) -> dict[str, str]:
    fields = {name: getattr(schedule, name) for name in _SAME}
    if schedule.job is not None:
        return fields | forms.option_fields(schedule.job | {"post_process": []})
    fields |= forms.option_fields(schedule.batch)
    fields |= {"holds": "requests", "endpoint": schedule.batch["endpoint"], "file_id": schedule.input["file_id"] or ""}
    made_of: dict[str, str] = schedule.input.get("prompts", {})
    spec = current_context().models.get(made_of.get("model", ""))
    if spec is not None and made_of["endpoint"] in spec.endpoints:
        return fields | made_of | {"holds": "prompts"}
    template = _template(schedule)
    return fields | ({"template": template} if len(template) <= SHOWN else {})
