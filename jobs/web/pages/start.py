"""/new/job/<recipe>: a form that creates a job of a recipe, with what it would be and what it would ask first."""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard.errors import NotFoundError, RequestError
from batchyard.models import served_by_name
from batchyard.tables import formats
from jobs.catalogue import catalogue_of
from jobs.kinds.registry import kind_of
from jobs.submission import creation
from jobs.submission.creation import JobOutlook, JobRequest
from jobs.web.jobs import create_once, get_job, outlook_to_wire, request_of
from jobs.web.pages import option_fields
from jobs.web.pages.option_fields import OptionForm
from store import files
from store.records import File
from tasks.intake import preview, submission
from tasks.intake.estimate import scaled
from tasks.intake.submission import NewInput
from webapp.files import uploaded
from webapp.pages import forms, snippets
from webapp.pages.forms import Problem
from webapp.pages.starting import asks, examples
from webapp.requests import caller, current_context, validated
from webapp.wire.jobs import DryRun, JobOptions

routes = Blueprint("new_job", __name__, url_prefix="/new/job/<recipe>")

DEFAULT_WINDOW = "24h"
FILES = 50
_MAX_ERRORS = 20


@routes.get("")
def show(recipe: str) -> ResponseReturnValue:
    """Show the form: empty, with an example, with a stored file, or as a job was made that is to run again."""
    arguments = flask.request.args
    fields: dict[str, str] = {"stored": f"file:{arguments['file']}"} if "file" in arguments else {}
    values: Mapping[str, Any] = {}
    if "example" in arguments:
        card = examples.card(arguments["example"])
        fields, values = {"stored": f"example:{card.input}"}, card.values()
    elif "again" in arguments:
        job = get_job(arguments["again"])
        options = {"completion_window": job.completion_window, "metadata": job.request_metadata}
        fields = forms.option_fields(options) | {"job_name": job.name or ""}
        # A file that is gone has to be chosen again.
        fields |= {"seed": str(job.seed or ""), "stored": f"file:{job.input_file_id}" if job.input_file_id else ""}
        values = job.options
    document, names = _document(recipe), _names()
    return _page(recipe, option_fields.form(document, values, names), fields=fields)


@routes.post("")
def create(recipe: str) -> ResponseReturnValue:
    """Submit the form. After an error, show it again with its fields as they were."""
    try:
        request = _request(recipe)
        if request is None:
            raise RequestError("Choose a file, or type or paste something.", param="text")
        context, project_id = current_context(), caller().project_id
        shown = _outlook(request)
        if shown["outlook"].errors:  # it would fail with them
            options = _sent(recipe)
            problem = Problem("Some rows cannot run; they are listed next to the button.", "preview")
            return _page(recipe, options, problem, **shown), 400
        names = ("recipe", "options", "completion_window", "seed", "name", "metadata", "sample_rows")
        content = [_content(request)[1], *(getattr(request, name) for name in names)]
        idempotency = forms.idempotency("new-job", hashlib.sha256(json.dumps(content).encode()).hexdigest())
        job = create_once(idempotency, lambda: creation.draft(context, project_id, request)).record
        return flask.redirect(flask.url_for("pages.jobs.show", job_id=job.id), 303)
    except RequestError as error:
        options = _sent(recipe)
        return _page(recipe, options, _problem(error, options)), error.status


@routes.post("/preview")
def look(recipe: str) -> ResponseReturnValue:
    """Show what the job would be. For htmx: only that; without scripts: the page with it."""
    problem, shown = None, _outlook_variables(None)
    options = _sent(recipe)
    try:
        request = _request(recipe)
        if request is not None:
            shown = _outlook(request)
    except RequestError as error:
        problem = _problem(error, options)
    if flask.request.headers.get("HX-Request"):
        return flask.render_template("new_job_preview.html", problem=problem, **shown)
    return _page(recipe, options, problem, **shown)


def _outlook(request: JobRequest) -> dict[str, Any]:
    beginning = _beginning(request)
    whole = beginning.factor == 1
    outlook = creation.dry_run(current_context(), caller().project_id, beginning.request)
    if not whole:
        outlook = _scaled(outlook, beginning.factor, request.options.get("limit"))
    fields = ("recipe", "options", "completion_window", "seed", "name", "metadata")
    values = {name: getattr(request, name) for name in fields}
    body = {name: value for name, value in values.items() if value and value != DEFAULT_WINDOW}
    variables = _outlook_variables(outlook_to_wire(outlook), whole, beginning.columns)
    return variables | {"snippets": snippets.job(body, _content(request)[0])}


def _page(
    recipe: str,
    options: OptionForm,
    problem: Problem | None = None,
    fields: Mapping[str, str] = MappingProxyType({}),
    **variables: Any,
) -> str:
    context = current_context()
    fields = flask.request.form or {"completion_window": DEFAULT_WINDOW, **fields}
    with context.database.read() as session:
        records, _ = files.page(session, caller().project_id, after=None, limit=FILES, descending=True, purpose=None)
        chosen = files.find(session, caller().project_id, fields.get("stored", "").removeprefix("file:"))
    offered = [file for file in records if file.purpose in submission.JOB_PURPOSES and formats.kind_of(file.filename)]
    upload = flask.request.files.get("file")
    return flask.render_template(
        "new_job.html",
        recipe=catalogue_of(context).recipe(recipe),
        recipes=catalogue_of(context).recipes.values(),
        options=options,
        fields=fields,
        problem=problem,
        once=fields.get("once") or secrets.token_hex(16),
        offered=offered if chosen is None or chosen in offered else [chosen, *offered],
        examples=examples.inputs(),
        upload_name=upload.filename if upload else None,
        max_bytes=context.settings.max_file_bytes,
        plannable=kind_of(catalogue_of(context).recipe(recipe)).has_journal,
        plan_rows=forms.PLAN_ROWS,
        **(variables or _outlook_variables(None)),
    )


def _outlook_variables(outlook: DryRun | None, whole: bool = True, columns: Sequence[str] = ()) -> dict[str, Any]:
    requests = [] if outlook is None else [(request.stage, request.body) for request in outlook.requests]
    return {
        "outlook": outlook,
        "whole": whole,
        "columns": columns,
        "requests": asks.of_bodies(requests),
        "more_requests": max(0, len(requests) - asks.SHOWN),
        "max_errors": _MAX_ERRORS,
        "head_bytes": preview.HEAD_BYTES,
    }


def _document(recipe: str) -> dict[str, Any]:
    catalogue = catalogue_of(current_context())
    if recipe not in catalogue.recipes:
        raise NotFoundError(f"There is no recipe '{recipe}' here; there are: {', '.join(catalogue.recipes)}.")
    document: dict[str, Any] = catalogue.recipes[recipe].options.model_json_schema()
    return document


def _names() -> option_fields.Names:
    context = current_context()
    catalogue = catalogue_of(context)
    return {
        "model": sorted(served_by_name(context.models)),
        "reward": sorted(catalogue.rewards),
        "gate": sorted(catalogue.gates),
        "recipe": sorted(catalogue.recipes),
    }


def _sent(recipe: str) -> OptionForm:
    return option_fields.form(_document(recipe), {}, _names(), flask.request.form)


def _problem(error: RequestError, options: OptionForm) -> Problem:
    param = error.param or ""
    if param.startswith("input"):
        return Problem(error.message, "stored")
    if param.startswith("options"):
        return Problem(error.message, option_fields.field_of(options, param))
    return Problem.of(error)


def _request(recipe: str) -> JobRequest | None:
    """Return the job that the form asks for; None without an input. Raises RequestError."""
    fields = flask.request.form
    source, seed = _source(), fields.get("seed", "").strip() or "0"
    values = {
        "recipe": recipe,
        "options": option_fields.read(_document(recipe), fields),
        "completion_window": fields.get("completion_window", "").strip() or DEFAULT_WINDOW,
        "seed": int(seed) if seed.isdecimal() else seed,
        "name": fields.get("job_name", "").strip() or None,
        "metadata": forms.metadata(fields.get("metadata", "")),
    }
    body = validated(JobOptions, values)
    rows = forms.PLAN_ROWS if "plan" in fields else None
    return None if source is None else replace(request_of(body, source), sample_rows=rows)


def _source() -> File | NewInput | None:
    """Return the form's input: an upload, a text, a stored file or an example. Raises RequestError for two of them."""
    fields, part = flask.request.form, flask.request.files.get("file")
    upload = uploaded() if part and part.filename else None
    text, stored = fields.get("text", ""), fields.get("stored", "")
    if (upload is not None) + bool(text.strip()) > 1:
        raise RequestError("Send either a file or a text, not both.", param="file")
    if upload is not None:
        content, name = upload
        if not content.stored:
            content.commit()
        return NewInput(name, content)
    if text.strip():
        with current_context().artifacts.create() as writer:
            writer.write(text.replace("\r\n", "\n").encode())
        return NewInput(f"rows.{fields.get('format', 'txt')}", writer)
    kind, _, name = stored.partition(":")
    if kind == "example":
        return NewInput(name, examples.stored(current_context(), name))
    if not name:
        return None
    with current_context().database.read() as session:
        return submission.input_file(
            session, caller().project_id, name, param="stored", purposes=submission.JOB_PURPOSES
        )


class _Beginning(NamedTuple):
    """A job of the first rows of an input, which has so many times their bytes: 1.0 if these are all."""

    request: JobRequest
    factor: float
    columns: Sequence[str]


def _beginning(request: JobRequest) -> _Beginning:
    """Return a job of the beginning of its input: a preview has to be quick."""
    context = current_context()
    name, sha256, size = _content(request)
    with context.artifacts.open(sha256) as file:
        columns = asks.columns(file, name)
    kind = formats.kind_of(name)
    if kind is None or kind.format == "parquet" or kind.compression is not None:
        return _Beginning(request, 1.0, columns)
    with context.artifacts.open(sha256) as file:
        content, whole = preview.head(file)
    content = content if whole else asks.whole_rows(content, name)
    if whole or not content:
        return _Beginning(request, 1.0, columns)
    with context.artifacts.create() as writer:
        writer.write(content)
    # A script sends no more of a text, and says how many bytes there are.
    size = max(size, flask.request.form.get("file_bytes", 0, type=int))
    return _Beginning(replace(request, input=NewInput(name, writer)), size / len(content), columns)


def _content(request: JobRequest) -> tuple[str, str, int]:
    source: Any = request.input
    if isinstance(source, NewInput):
        return source.name, source.content.sha256, source.content.size
    return source.filename, source.sha256, source.bytes


def _scaled(outlook: JobOutlook, factor: float, limit: int | None) -> JobOutlook:
    """Return the outlook of a job of so many times the items, `limit` at most. When it would be done is not known."""
    of_head = outlook.estimate
    if limit and of_head.items:
        factor = min(factor, limit / of_head.items)
    stages = [stage.times(factor) for stage in of_head.stages]
    items = None if of_head.items is None else round(of_head.items * factor)
    parts = None if of_head.parts is None else scaled(of_head.parts, factor)
    estimate = replace(of_head, items=items, stages=stages, parts=parts, seconds=None, earliest=None, latest=None)
    warnings = [warning for warning in outlook.warnings if warning[0] != "eta_unknown"]  # the page says why itself
    return replace(outlook, estimate=estimate, warnings=warnings)
