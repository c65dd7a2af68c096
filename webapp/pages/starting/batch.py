"""/new: a form that creates a batch of a file or a text, with a preview of its first requests."""

import hashlib
import io
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import IO, Any

import flask
import orjson
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard import json_lines
from batchyard.errors import RequestError
from batchyard.request_lines import warnings
from batchyard.tables import formats
from store import batches, files
from store.artifacts import ArtifactWriter
from store.records import Batch, File
from store.work.lifecycle import refuse_stage
from tasks.intake import budgets, estimate, inputs, preview, prompts, submission
from tasks.intake.inputs import InputOptions
from tasks.intake.preview import Preview
from tasks.intake.prompts import InputPrompt
from tasks.intake.submission import NewInput
from webapp.batches import get_batch
from webapp.files import get_file, uploaded
from webapp.intake import start
from webapp.pages import forms
from webapp.pages.forms import Problem
from webapp.pages.starting import asks, examples
from webapp.requests import caller, current_context, reading, validated
from webapp.wire.start import PARAMETERS, StartDryRun, StartForm

routes = Blueprint("new", __name__, url_prefix="/new")

_CHANGEABLE = ("model", "temperature", "top_p", "max_tokens", "seed")
"""The parameters that the form can change in all requests of a stored file."""
_OPTIONS = ("model", "system", "template", *PARAMETERS)
_MAX_ERRORS = 20
_MAX_ROWS = 500
"""Only so many rows of a Parquet file are previewed."""


@dataclass(frozen=True)
class _Source:
    """The input of a form: a stored file, an uploaded file, an example, or a typed text."""

    name: str
    content: File | ArtifactWriter | bytes
    typed: bool = False

    @property
    def size(self) -> int:
        """Its bytes. A script that sends only the beginning of a file says how many the file has."""
        sent = flask.request.form.get("file_bytes", type=int)
        if isinstance(self.content, bytes):
            return len(self.content)
        size = self.content.bytes if isinstance(self.content, File) else self.content.size
        return max(size, sent or 0) if "HX-Request" in flask.request.headers else size

    @property
    def is_plain(self) -> bool:
        """True if its bytes are those of its lines."""
        kind = formats.kind_of(self.name)
        return kind is None or (kind.compression is None and kind.format != "parquet")

    def opened(self) -> AbstractContextManager[IO[bytes]]:
        if isinstance(self.content, bytes):
            return io.BytesIO(self.content)
        return current_context().artifacts.open(self.content.sha256)

    def head(self) -> tuple[bytes, bool]:
        """Return the first lines as `preview.head` does; a text is returned whole."""
        if isinstance(self.content, bytes):
            return self.content, True
        if isinstance(self.content, ArtifactWriter) and not self.content.stored:
            self.content.commit()
        with inputs.opened(current_context(), self.content, self.name) as file:
            return preview.head(file)


@routes.get("")
def show() -> ResponseReturnValue:
    """Show the form: empty, with a stored file, or as a batch was made that is to run again."""
    arguments = flask.request.args
    if "example" in arguments:
        card = examples.card(arguments["example"])
        return _page(fields={"stored": f"example:{card.input}", **card.fields})
    if "again" in arguments:
        batch = get_batch(arguments["again"])
        refuse_stage(batch, "retry")
        file = get_file(batch.input_file_id)
        name = (batch.request_metadata or {}).get(batches.NAME) or (batch.name if batch.name != file.filename else None)
        fields = forms.fields_of(batch) | {"endpoint": batch.endpoint, "batch_name": name or ""}
        return _page(file=file, fields=fields)
    return _page(file=get_file(arguments["file"]) if "file" in arguments else None)


@routes.post("")
def create() -> ResponseReturnValue:
    """Submit the form. After an error, show it again with its fields as they were."""
    seen = _Look()
    try:
        options, source = _options(), _source()
        if source is None:
            raise RequestError("Choose a file, or type or paste something.", param="text")
        seen.read(options, source)
        if seen.preview is not None and (not seen.preview.errors or options.on_invalid == "skip"):
            batch = _submit(options, source, seen.preview)
            return flask.redirect(flask.url_for("pages.batches.show", batch_id=batch.id), 303)
        seen.problem, status = Problem("Some lines cannot run; they are listed below.", "preview"), 400
    except RequestError as error:
        seen.problem, status = Problem.of(error), error.status
    return _page(seen), status


@routes.post("/preview")
def look() -> ResponseReturnValue:
    """Show the first requests. For htmx: only those; without scripts: the page with them."""
    seen = _Look()
    try:
        source = _source()
        if source is not None:
            seen.read(_options(), source)
            with reading() as (session, owner):
                budgets.check(current_context(), session, owner.project_id)
                budgets.check(current_context(), session, owner.project_id, owner.key_id)
    except RequestError as error:
        seen.problem = Problem.of(error)
    if flask.request.headers.get("HX-Request"):
        return flask.render_template("new_preview.html", fields=flask.request.form, **seen.variables())
    return _page(seen)


@dataclass
class _Look:
    """What the page says of an input: as much of it as could be read before a problem.

    `columns` are of a table, or the fields of the first line of JSON; `order` that of all columns in the prompts, where
    the template has them.
    """

    preview: Preview | None = None
    columns: Sequence[str] = ()
    order: Sequence[str] | None = None
    outlook: StartDryRun | None = None
    problem: Problem | None = None

    def read(self, options: StartForm, source: _Source) -> None:
        """Read the beginning of an input. Raises RequestError for an error that all requests share."""
        content, whole = source.head()
        if not _is_requests():
            with source.opened() as file:
                self.columns = asks.columns(file, source.name)
        self.preview, self.order = _preview(options, source, content, whole)
        shown = self.preview
        if not shown.first_line or not (shown.whole or source.is_plain):
            return
        # The input has so many times the requests of the preview.
        factor = 1.0 if shown.whole or not content else source.size / len(content)
        size = round(shown.size * factor)
        self.outlook = start.outlook(
            start.forecast_of(options, shown.first_line, size),
            estimate.scaled(shown.parts, factor),
            requests=round(shown.count * factor),
            bytes=size,
            columns=self.order and [*self.order],
            warnings=start.messages(warnings.of_line(options.endpoint, 1, shown.first_line)),
        )

    def variables(self) -> dict[str, Any]:
        requests = self.preview.requests if self.preview else []
        return {
            "preview": self.preview,
            "columns": self.columns,
            "order": self.order,
            "outlook": self.outlook,
            "problem": self.problem,
            "requests": asks.of_lines(requests),
            "max_errors": _MAX_ERRORS,
            "head_bytes": preview.HEAD_BYTES,
            "refuses_late": current_context().settings.admission == "refuse",
        }


def _page(seen: _Look | None = None, file: File | None = None, fields: Mapping[str, str] = MappingProxyType({})) -> str:
    """Render the form with the fields that were sent, or with those of its first request and `fields`."""
    context, file_id = current_context(), flask.request.form.get("file_id")
    if file_id:
        with context.database.read() as session:
            file = files.find(session, caller().project_id, file_id)
    first = _first_request(file) if file else {}
    if flask.request.form:
        fields = flask.request.form
    else:
        body = {name: str(value) for name, value in _changeable(first).items()}
        fields = {"endpoint": first.get("url", "")} | body | dict(fields)
    upload = flask.request.files.get("file")
    return flask.render_template(
        "new.html",
        examples=examples.inputs(),
        fields=fields,
        once=fields.get("once") or secrets.token_hex(16),
        file=file,
        plan_rows=forms.PLAN_ROWS,
        upload_name=upload.filename if upload else None,
        **forms.template_context(),
        **(seen or _Look()).variables(),
        max_bytes=context.settings.max_file_bytes,
    )


def _is_requests() -> bool:
    """True if the input holds whole requests instead of prompts."""
    fields = flask.request.form
    return bool(fields.get("file_id")) or fields.get("holds") == "requests"


def _options() -> StartForm:
    """Return the form's options as those of POST /start. Raises RequestError."""
    fields = flask.request.form
    values = forms.batch_options(fields) | {"endpoint": fields.get("endpoint")}
    if "plan" in fields:
        values["plan"] = {"rows": forms.PLAN_ROWS}
    if name := fields.get("batch_name", "").strip():
        values["metadata"] = (values["metadata"] or {}) | {batches.NAME: name}
    if fields.get("file_id"):
        values |= forms.filled(fields, *_CHANGEABLE)
    elif not _is_requests():
        values |= forms.filled(fields, *_OPTIONS)
        if null_values := [text for part in fields.get("null_values", "").split(",") if (text := part.strip())]:
            values["null_values"] = null_values
    options = validated(StartForm, values)
    submission.check_window(current_context().settings, options.completion_window)
    submission.check_endpoint(current_context().models, options.endpoint)
    return options


def _source() -> _Source | None:
    """Return the form's input; None if it is empty. Raises RequestError if it has both a file and a text."""
    fields, part = flask.request.form, flask.request.files.get("file")
    if fields.get("file_id"):
        with current_context().database.read() as session:
            file = submission.input_file(session, caller().project_id, fields["file_id"], param="file")
        return _Source(file.filename, file)
    upload = uploaded() if part and part.filename else None
    text = forms.text(fields, "text")
    if upload is not None and text.strip():
        raise RequestError("Send either a file or a text, not both.", param="file")
    if upload is not None:
        return _Source(upload[1], upload[0])
    if text.strip():
        name = "prompts.jsonl" if _is_requests() else f"prompts.{fields.get('format', 'txt')}"
        return _Source(name, text.encode(), typed=True)
    kind, _, name = fields.get("stored", "").partition(":")
    return _Source(name, examples.stored(current_context(), name)) if kind == "example" else None


def _preview(options: StartForm, source: _Source, content: bytes, whole: bool) -> tuple[Preview, Sequence[str] | None]:
    """Preview the first requests, with the order of all columns, if any. Raises RequestError if all share an error."""
    context, of_input = current_context(), start.input_options(options)
    if changes := _changes(options, source):
        content = b"".join(prompts.changed(io.BytesIO(content), changes, context.settings.max_line_bytes))
    if _is_requests():
        return preview.of_requests(context, options.endpoint, content, whole=whole), None
    kind, request_template = prompts.kind_of(source.name).format, inputs.request_template(context, of_input)
    if kind == "jsonl" and prompts.is_requests(io.BytesIO(content)):
        raise RequestError("Whole requests name their own model and parameters.", param="holds")
    of_input = _ordered(source, of_input)
    rows: Iterable[InputPrompt]
    if kind == "parquet":
        if isinstance(source.content, bytes):
            raise RequestError("Parquet is not text; send it as a file.", code="invalid_value", param="text")
        with source.opened() as file:
            first = list(islice(inputs.read_prompts(context, of_input, file, kind), _MAX_ROWS + 1))
        rows, whole = first[:_MAX_ROWS], len(first) <= _MAX_ROWS
    else:
        rows = inputs.read_prompts(context, of_input, io.BytesIO(content), kind)
    input_preview = preview.of_prompts(context, request_template, rows, whole=whole)
    for error in input_preview.errors:
        place = error["param"] or ""
        if place in ("url", "body.model", *(f"body.{name}" for name in PARAMETERS)):  # the form sets these for all
            raise RequestError(error["message"], code=error["code"], param=place.removeprefix("body."))
    return input_preview, None if of_input.template is None else of_input.template.order


def _ordered(source: _Source, options: InputOptions) -> InputOptions:
    """Return the options with all columns of the template in order, as all that was sent of the input decides it."""
    if isinstance(source.content, File | ArtifactWriter):
        return inputs.ordered(current_context(), options, source.content, source.name)
    if options.template is None:
        return options
    text, kind = io.BytesIO(source.content), prompts.kind_of(source.name).format
    return replace(options, template=prompts.ordered(options.template, text, kind, null_values=options.null_values))


def _first_request(file: File) -> dict[str, Any]:
    with current_context().artifacts.open(file.sha256) as source:
        try:
            request = json_lines.read(source.readline(current_context().settings.max_line_bytes))
        except orjson.JSONDecodeError:
            return {}
    return request if isinstance(request, dict) else {}


def _changeable(request: dict[str, Any]) -> dict[str, Any]:
    """Return what the form shows of a request of a stored file, and can change in all."""
    body = request.get("body")
    values = {name: body.get(name) for name in _CHANGEABLE} if isinstance(body, dict) else {}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float)}


def _changes(options: StartForm, source: _Source) -> dict[str, Any]:
    """Return the parameters in which the form differs from the first request of a stored file; None removes one."""
    if not isinstance(source.content, File) or not flask.request.form.keys() & set(_CHANGEABLE):
        return {}
    first = _changeable(_first_request(source.content))
    return {name: value for name in _CHANGEABLE if (value := getattr(options, name)) != first.get(name)}


def _title(input_preview: Preview) -> str | None:
    """Return what a typed or pasted input is called: the beginning of its first prompt."""
    body = input_preview.requests[0].get("body") if input_preview.requests else None
    body = body if isinstance(body, dict) else {}
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages and isinstance(messages[-1], dict) else {}
    text = last.get("content") or body.get("prompt") or body.get("input")
    return prompts.title_of(text) if isinstance(text, str) else None


def _submit(options: StartForm, source: _Source, input_preview: Preview) -> Batch:
    content, artifacts = source.content, current_context().artifacts
    title = _title(input_preview) if source.typed else None
    if options.template is not None and not source.typed:
        title = prompts.title_of(f"{source.name}: {options.template}")  # one table may run with several templates
    if isinstance(content, File) and (changes := _changes(options, source)):
        with artifacts.open(content.sha256) as file, artifacts.create() as writer:
            for line in prompts.changed(file, changes, current_context().settings.max_line_bytes):
                writer.write(line)
        content = writer
    if isinstance(content, bytes):
        with artifacts.create() as writer:
            writer.write(content)
        content = writer
    form_sha256 = hashlib.sha256(f"{content.sha256} {options.model_dump_json()}".encode()).hexdigest()
    idempotency = forms.idempotency("new", form_sha256)
    if isinstance(content, File):
        return start.make(options, content, idempotency)
    if _is_requests():
        requests = inputs.decompressed(current_context(), content, source.name)
        return start.make(options, NewInput(source.name, requests), idempotency, title)
    batch, _ = start.submit(options, (content, source.name), idempotency, title)
    return batch
