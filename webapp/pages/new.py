"""/new: a batch of a file or of what is typed in, with a look at its first requests before it is submitted."""

from __future__ import annotations

import hashlib
import io
import json
import secrets
from dataclasses import dataclass
from typing import Any

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard.errors import RequestError
from batchyard.wording import cut
from store import files
from store.artifacts import Writer
from store.records import Batch, File
from tasks.intake import preview, prompts, submission
from tasks.intake.preview import Preview
from webapp import start
from webapp.files import uploaded
from webapp.pages import forms
from webapp.pages.forms import Problem
from webapp.requests import caller, current_context, validated
from webapp.start import PARAMETERS, StartForm

routes = Blueprint("new", __name__, url_prefix="/new")

_MORE = ("system", "template", *PARAMETERS)
_ERRORS = 20
"""So many errors are shown."""
_CHARACTERS = 2000
"""So much of a request is shown."""


@dataclass(frozen=True)
class _Given:
    """What a form has as the input: a file that is stored already, one that was sent with it, or a text."""

    name: str
    content: File | Writer | bytes

    def head(self) -> tuple[bytes, bool]:
        """As `preview.head`; a text is looked at whole."""
        if isinstance(self.content, bytes):
            return self.content, True
        if isinstance(self.content, Writer) and not self.content.stored:
            self.content.commit()
        with current_context().artifacts.open(self.content.sha256) as source:
            return preview.head(source)


@routes.get("")
def show() -> ResponseReturnValue:
    file_id = flask.request.args.get("file")
    if file_id is not None:
        with current_context().database.read() as session:
            files.get(session, caller().project_id, file_id)
    return _page()


@routes.post("")
def create() -> ResponseReturnValue:
    """Submit what was typed; what cannot be used comes back with it."""
    seen = None
    try:
        asked, given = _asked(), _given()
        if given is None:
            raise RequestError("Choose a file, or type or paste something.", param="text")
        seen = _look(asked, given)
        if not seen.errors:
            batch = _submit(asked, given)
            return flask.redirect(flask.url_for("pages.batches.show", batch_id=batch.id), 303)
        problem, status = Problem("Some of its lines cannot be run; they are listed below.", "preview"), 400
    except RequestError as error:
        problem, status = Problem.of(error), error.status
    return _page(seen, problem), status


@routes.post("/preview")
def look() -> ResponseReturnValue:
    """The first requests, as a part of the page that is there already or, without scripts, in a new one."""
    seen, problem = None, None
    try:
        given = _given()
        if given is not None:
            seen = _look(_asked(), given)
    except RequestError as error:
        problem = Problem.of(error)
    if flask.request.headers.get("HX-Request"):
        return flask.render_template("new_preview.html", **_shown(seen, problem))
    return _page(seen, problem)


def _page(seen: Preview | None = None, problem: Problem | None = None) -> str:
    typed = flask.request.form
    file_id = typed.get("file_id") or flask.request.args.get("file")
    context, file = current_context(), None
    if file_id:
        with context.database.read() as session:
            file = files.find(session, caller().project_id, file_id)
    sent = flask.request.files.get("file")
    return flask.render_template(
        "new.html",
        typed=typed,
        once=typed.get("once") or secrets.token_hex(16),
        file=file,
        sent=sent.filename if sent else None,
        **forms.template_context(),
        **_shown(seen, problem),
        max_bytes=context.settings.max_file_bytes,
    )


def _shown(seen: Preview | None, problem: Problem | None) -> dict[str, Any]:
    requests = seen.requests if seen else []
    return {
        "seen": seen,
        "problem": problem,
        "requests": [cut(json.dumps(request, ensure_ascii=False, indent=2), _CHARACTERS) for request in requests],
        "most": _ERRORS,
        "head_bytes": preview.HEAD_BYTES,
    }


def _whole() -> bool:
    """Whether the input holds whole requests, and not prompts."""
    typed = flask.request.form
    return bool(typed.get("file_id")) or typed.get("holds") == "requests"


def _asked() -> StartForm:
    """What was typed, as a client of POST /start would write it. Raises RequestError."""
    typed = flask.request.form
    said = forms.batch_options(typed)
    if _whole():
        said["endpoint"] = typed.get("endpoint")
    else:
        said["endpoint"], _, said["model"] = typed.get("run", "").partition(" ")
        said |= {name: typed[name] for name in _MORE if typed.get(name, "").strip()}
    asked = validated(StartForm, said)
    submission.check_window(current_context().settings, asked.completion_window)
    return asked


def _given() -> _Given | None:
    typed, sent = flask.request.form, flask.request.files.get("file")
    if typed.get("file_id"):
        with current_context().database.read() as session:
            file = submission.input_file(session, caller().project_id, typed["file_id"], param="file")
        return _Given(file.filename, file)
    upload = uploaded() if sent and sent.filename else None
    text = typed.get("text", "")
    if upload is not None and text.strip():
        raise RequestError("There is a file, and a text, too: send one of them.", param="file")
    if upload is not None:
        return _Given(upload[1], upload[0])
    if not text.strip():
        return None
    return _Given("prompts.jsonl" if _whole() else f"prompts.{typed.get('format', 'txt')}", text.encode())


def _look(asked: StartForm, given: _Given) -> Preview:
    """Raises RequestError for what none of the requests could be."""
    context = current_context()
    content, whole = given.head()
    if _whole():
        return preview.of_requests(context, asked.endpoint, content, whole=whole)
    kind, recipe = start.format_of(given.name), start.recipe(asked)
    if kind == "jsonl" and prompts.is_requests(io.BytesIO(content)):
        raise RequestError("These are whole requests, which say themselves how they are run.", param="holds")
    found = prompts.of_file(io.BytesIO(content), kind, asked.template)
    seen = preview.of_prompts(context, recipe, found, whole=whole)
    for error in seen.errors:
        name = (error["param"] or "").removeprefix("body.")
        if name in ("url", "model", *PARAMETERS):  # the same for all
            raise RequestError(error["message"], code=error["code"], param=name)
    return seen


def _submit(asked: StartForm, given: _Given) -> Batch:
    owner, source = caller(), given.content
    if isinstance(source, bytes):
        with current_context().artifacts.create() as writer:
            writer.write(source)
        source = writer
    form = _form(asked, source.sha256)
    if isinstance(source, File):
        return start.make(asked, lambda session: submission.input_file(session, owner.project_id, source.id), form)
    if _whole():
        return start.make(
            asked, lambda session: submission.name_input(session, owner.project_id, given.name, source), form
        )
    return start.submit(asked, (source, given.name), form)


def _form(asked: StartForm, sha256: str) -> tuple[str, str] | None:
    """The idempotency key of a form that was shown once: sent twice as it is, it makes one batch."""
    key = flask.request.form.get("once")
    said = hashlib.sha256(f"{sha256} {asked.model_dump_json()}".encode()).hexdigest()
    return (f"page-new-{key[:64]}-{said}", said) if key else None
