"""/batches/<id>/requests: the requests of a batch, filtered and searched, each with its answer, and as a download."""

import json
import logging
import secrets
from contextlib import ExitStack
from typing import Annotated, Any, Literal, NamedTuple

import flask
import orjson
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue
from pydantic import Field

from batchyard import json_lines
from batchyard.endpoints import responses
from batchyard.errors import ArtifactMissing, ConflictError, NotFoundError, UnavailableError
from batchyard.json_lines import MAX_LINE_BYTES
from batchyard.statuses import TERMINAL
from results import downloads, problems
from results.filter import Filter
from results.opening import open_rows
from results.problems import Problems
from results.rows import Entry, Rows
from store import batches, files
from store.formats.results import ERRORS, OUTPUT, ResultRow
from store.records import Batch
from tasks.context import AppContext
from webapp.batches import get_batch
from webapp.pages import answers
from webapp.pages.answers import Passage
from webapp.pages.forms import Blank
from webapp.pages.rendering import rendered
from webapp.requests import current_context, query
from webapp.wire.lists import QueryParams

log = logging.getLogger(__name__)

routes = Blueprint("rows", __name__, url_prefix="/batches/<batch_id>")

ROWS = 25
FIRST_ROWS = 10
TEXT = 400
SHOWN_BYTES = 32 * 1024
"""Longest request or answer whose JSON stands on its page; of a longer one there is a link."""
SCORE_BYTES = 64 * 1024 * 1024
"""Most bytes of a step's artifact in which a request's line is looked for."""


class RowParams(QueryParams):
    """A filter, and the page of what it leaves. Fields of a form that are left empty exclude nothing."""

    state: Literal["", "succeeded", "failed", "expired", "cancelled", "waiting", "unsuccessful"] = ""
    grade: Literal["", "right", "wrong", "unscored"] = ""
    task: str = Field("", max_length=512)
    code: str = Field("", max_length=200)
    custom_id: str = Field("", max_length=512)
    text: str = Field("", max_length=1000)
    after: Annotated[int | None, Blank] = Field(None, ge=1, le=2**53)
    before: Annotated[int | None, Blank] = Field(None, ge=1, le=2**53)
    line: Annotated[int | None, Blank] = Field(None, ge=1, le=2**53)

    @property
    def filter(self) -> Filter:
        return Filter(self.state, self.grade, self.task, self.code, self.custom_id, self.text)

    @property
    def chosen(self) -> dict[str, str]:
        return {name: value for name, value in vars(self.filter).items() if value}


class DownloadParams(RowParams):
    merged: bool = False


class RowPreview(NamedTuple):
    """A request and its answer for the list, cut to TEXT characters. `expected` is empty unless the answer is wrong."""

    row: ResultRow
    state: str
    grade: str
    prompt: list[Passage]
    answer: str
    expected: str
    flaws: list[str]


def _cut(text: str) -> str:
    hidden = len(text) - TEXT
    return text if hidden <= 0 else f"{text[:TEXT]}… and {hidden:,} more characters"


def pair_of(entry: Entry) -> RowPreview:
    """Return the last two messages of a request with the beginning of its answer or error."""
    row = entry.row
    prompt = answers.prompt(row.body, listed=True) or ([Passage("", answers.text_of(row.body))] if row.body else [])
    answer = row.text
    if answer is None:
        code, message = _error(row)
        shown = answers.choices(row.response)[0].text if row.response else ""
        answer = message or code or shown
    passages = [passage._replace(text=_cut(passage.text)) for passage in prompt[-2:]]
    expected = _cut(str(row.body["metadata"]["expected"])) if entry.grade == "wrong" and row.body else ""
    return RowPreview(row, entry.state, entry.grade, passages, _cut(answer), expected, answers.flaws(row))


def _error(row: ResultRow) -> tuple[str, str]:
    """Return code and message of a request that failed, empty if it did not."""
    error = row.failure or (row.response if row.status_code not in (None, 200) else None) or {}
    if not error:
        return "", ""
    message = error.get("message")
    return str(error.get("code") or ""), message if isinstance(message, str) else answers.text_of(error)


def beginning(batch: Batch) -> tuple[dict[str, Any], Problems | None]:
    if not batch.planned:
        return {"pairs": [], "listed": None, "problem": None}, problems.of_validation(batch.errors or ())
    try:
        with open_rows(current_context(), batch) as rows:
            return _listed(rows, RowParams(), FIRST_ROWS) | _graded(rows), problems.of_rows(rows)
    except (NotFoundError, UnavailableError) as error:
        return {"pairs": [], "listed": None, "problem": problem_of(error)}, None


def problem_of(error: NotFoundError | UnavailableError) -> str:
    """Return for people why the requests of a batch cannot be shown."""
    if isinstance(error, ArtifactMissing):
        return "The answers are missing from the artifact store: run the batch again or restore the store."
    if isinstance(error, NotFoundError):
        return error.message
    return "The artifact store is unavailable; reload this page in a minute. See the server's log for the cause."


def _listed(rows: Rows, params: RowParams, limit: int) -> dict[str, Any]:
    listed = rows.page(params.filter, limit, after=params.after, before=params.before)
    return {"pairs": [pair_of(entry) for entry in listed.entries], "listed": listed, "problem": rows.missing or None}


def _graded(rows: Rows) -> dict[str, Any]:
    return {"grades": rows.grades(), "tasks": rows.tasks()}


@routes.get("/requests")
def show(batch_id: str) -> ResponseReturnValue:
    """Show the requests that a filter leaves; with `line` go to the request on that line."""
    params, batch = query(RowParams), _planned(batch_id)
    if params.line is not None:
        return flask.redirect(flask.url_for(".one", batch_id=batch.id, line=params.line), 303)
    with open_rows(current_context(), batch) as rows:
        page = {"total": rows.table.num_rows, "counts": rows.counts(), "codes": rows.codes()}
        page |= _graded(rows) | _listed(rows, params, ROWS)
    ended = batch.status in TERMINAL
    return flask.render_template("rows.html", batch=batch, name=_name(batch), params=params, ended=ended, **page)


def _planned(batch_id: str) -> Batch:
    batch = get_batch(batch_id)
    if not batch.planned:
        raise ConflictError(
            "The requests of this batch are unavailable: it is still validated, or its input is invalid."
        )
    return batch


def _name(batch: Batch) -> str:
    with current_context().database.read() as session:
        names = files.names(session, batch.project_id, {batch.input_file_id})
    return batch.stage or names[batch.input_file_id] or batch.name or batch.id


@routes.get("/requests/<int:line>")
def one(batch_id: str, line: int) -> ResponseReturnValue:
    params, batch, context = query(RowParams), _planned(batch_id), current_context()
    with open_rows(context, batch) as rows:
        entry, lines = rows.one(line)
        beside, missing = rows.beside(params.filter, line), rows.missing
    row = entry.row
    code, message = _error(row)
    failed, ended = entry.state not in ("succeeded", "waiting"), batch.status in TERMINAL
    texts = answers.choices(row.response) if row.status_code == 200 and row.response else []
    contents = {"request": lines.request, "answer": lines.answer}
    return flask.render_template(
        "request.html",
        batch=batch,
        name=_name(batch),
        params=params,
        beside=beside,
        missing=missing,
        entry=entry,
        row=row,
        code=code or entry.code,
        message=message,
        flaws=answers.flaws(row),
        remedy=problems.remedy_of(entry) if failed else "",
        can_retry=failed and ended and batch.error_file_id is not None and batch.job_id is None,
        failures=batch.total - batch.completed,
        once=secrets.token_hex(16),
        fields={},
        prompt=answers.prompt(row.body),
        parameters=answers.parameters(row.body),
        choices=texts,
        rendered=rendered(choice.text for choice in texts),
        usage=responses.usage(row.response),
        loop_start=responses.loop_start(row.response),
        scores=_scores(context, batch, row.custom_id) if ended else {},
        json={name: _shown(content) for name, content in contents.items() if content},
    )


def _shown(content: bytes) -> str | None:
    """Return a line for people, indented if it is JSON; None if it is too long for the page."""
    if len(content) > SHOWN_BYTES:
        return None
    try:
        return answers.text_of(json_lines.loads(content))
    except orjson.JSONDecodeError:
        return content.decode(errors="replace")


def _scores(context: AppContext, batch: Batch, custom_id: str) -> dict[str, list[Passage]]:
    """Return what post-processing steps say of a request, by artifact: its line in each of their JSONL artifacts."""
    with context.database.read() as session:
        artifacts = batches.artifacts(session, [batch.id])[batch.id]
        names = [artifact.name for artifact, _ in artifacts if artifact.name not in (OUTPUT, ERRORS)]
        found = {name: batches.find_artifact(session, batch.project_id, batch.id, name) for name in names}
    scores: dict[str, list[Passage]] = {}
    for name, file in found.items():
        if not name.endswith(".jsonl") or file is None or file.bytes > SCORE_BYTES:
            continue
        if line := _line_of(context, file.sha256, custom_id):
            values = {key: value for key, value in line.items() if key not in ("line", "custom_id", "answer")}
            scores[name] = [Passage(key, answers.value_of(value)) for key, value in values.items()]
    return scores


def _line_of(context: AppContext, sha256: str, custom_id: str) -> dict[str, Any] | None:
    quoted = {json_lines.line(custom_id).rstrip(), json.dumps(custom_id).encode()}
    try:
        with context.artifacts.open(sha256) as file:
            while raw := file.readline(MAX_LINE_BYTES):
                if any(form in raw for form in quoted):
                    line = json_lines.loads(raw)
                    if isinstance(line, dict) and line.get("custom_id") == custom_id:
                        return line
    except UnavailableError as error:
        log.info("a request is shown without its scores: %s", error)
    return None


@routes.get("/requests/<int:line>/<name>.json")
def raw(batch_id: str, line: int, name: str) -> Response:
    """Send the line of a request or of its answer as it is in its file."""
    with open_rows(current_context(), _planned(batch_id)) as rows:
        _, lines = rows.one(line)
    content = {"request": lines.request, "answer": lines.answer}.get(name)
    if not content:
        raise NotFoundError(f"Line {line} of this batch has no {name}.")
    return Response(content, mimetype="application/json")


@routes.get("/results.<format_name>")
def download(batch_id: str, format_name: str) -> Response:
    """Send the requests that a filter leaves, with their answers; `merged` with those of the batch's retries."""
    params, batch = query(DownloadParams), _planned(batch_id)
    if format_name not in downloads.FORMATS:
        raise NotFoundError(f"No format '{format_name}'; available: {', '.join(downloads.FORMATS)}.")
    media_type, write = downloads.FORMATS[format_name]
    stack = ExitStack()
    try:  # before the first byte: what is missing is then an error, not a cut response
        rows = downloads.rows(current_context(), batch, params.filter, stack, merged=params.merged)
    except BaseException:
        stack.close()
        raise
    response = Response(write(rows), mimetype=media_type)
    response.call_on_close(stack.close)
    suffix = "_merged" if params.merged else "_filtered" if params.chosen else ""
    response.headers.set("Content-Disposition", "attachment", filename=f"{batch.id}{suffix}.{format_name}")
    return response
