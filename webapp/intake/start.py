"""POST /start: create a batch from prompts in one request, for curl and forms."""

from collections.abc import Mapping, Sequence
from typing import Any

import flask
from flask import Blueprint, url_for

from batchyard.errors import RequestError
from store.artifacts import ArtifactWriter
from store.records import Batch, File
from tasks.intake import estimate, inputs, prompts, submission
from tasks.intake.estimate import Part
from tasks.intake.inputs import InputOptions
from tasks.intake.submission import Draft, NewInput
from tasks.scheduling.forecast import Forecast
from webapp import batches, work
from webapp.document import operation
from webapp.files import uploaded
from webapp.idempotency import Idempotency
from webapp.port import port
from webapp.requests import current_context, form, parse_body, query
from webapp.wire.start import PARAMETERS, Start, StartAnswer, StartDryRun, Started, StartForm, StartQuery

routes = Blueprint("start", __name__)
OF_PROMPTS = {"model", "system", "template", "null_values", "sampling", *PARAMETERS}
OF_A_BATCH = {"endpoint", "on_invalid", "priority", "plan", "stop_when", "guard", *OF_PROMPTS}


@routes.post("/start")
@operation(StartAnswer, status=202, query=StartQuery, json=Start, form=StartForm, refusals=(403, 413))
def start() -> tuple[dict[str, Any], int]:
    """Start a batch from prompts, sent as JSON or as a form; or a job of a recipe.

    With `dry_run` nothing is started, and the answer says what a batch would be.
    """
    params, context = query(StartQuery), current_context()
    is_form = flask.request.mimetype in ("multipart/form-data", "application/x-www-form-urlencoded")
    file = uploaded() if is_form else None
    body = form(StartForm) if is_form else parse_body(Start, bulk=True)
    submission.check_window(context.settings, body.completion_window)
    if (file is None) == (body.prompts is None):
        message = "Send prompts either inline as 'prompts' or as a 'file'."
        raise RequestError(message, code="missing_required_parameter", param="prompts")
    if body.recipe is not None and params.dry_run:
        raise RequestError("A recipe's dry run is one of POST /v1/jobs.", code="invalid_value", param="dry_run")
    if body.recipe is not None:
        return _start_job(body, file).model_dump(), 202
    submission.check_endpoint(context.models, body.endpoint)
    if body.options:
        raise RequestError("'options' are a recipe's; name it.", code="missing_required_parameter", param="recipe")
    if params.dry_run:
        return _dry_run(body, file).model_dump(), 202
    batch, columns = submit(body, file)
    answer = Started(
        job_id=batch.id,
        batch_id=batch.id,
        file_id=batch.input_file_id,
        status_url=url_for("batches.retrieve", batch_id=batch.id, _external=True),
        columns=columns,
        warnings=messages(batch.warnings),
    )
    return answer.model_dump(), 202


def _start_job(options: Start, file: tuple[ArtifactWriter, str] | None) -> Started:
    if names := options.model_fields_set & OF_A_BATCH:
        message = "A job's requests are its recipe's; say this in 'options', or leave it out."
        raise RequestError(message, code="invalid_value", param=min(names))
    if file is None:
        rows = [{"prompt": prompt.content} for prompt in prompts.of_list(options.prompts or [])]
        if not rows:
            raise prompts.none()
        return port().start(options, rows)
    upload, name = file
    upload.commit()
    return port().start(options, NewInput(name, upload))


def _dry_run(options: Start, file: tuple[ArtifactWriter, str] | None) -> StartDryRun:
    """Count the requests of an input and forecast them. Raises RequestError if there are none."""
    context, (source, columns) = current_context(), _input(options, file)
    requests, parts = estimate.of_file(context, options.endpoint, source.content.sha256)
    draft = _draft(options, source)
    found = {"bytes": source.content.size, "columns": columns, "warnings": messages(draft.batch.warnings)}
    return outlook(submission.dry_run(context, draft), parts, requests=requests, **found)


def outlook(forecast: tuple[int, Forecast | None], parts: Mapping[str, Part], **found: Any) -> StartDryRun:
    """Return what a batch would be, of the time at which it is due, its forecast, and what was found in its input."""
    due_at, end = forecast
    on_time = None if end is None else end.at <= due_at
    return StartDryRun(due_at=due_at, **work.eta(end), on_time=on_time, cost=work.cost_of(parts), **found)


def messages(warnings: Sequence[Mapping[str, Any]] | None) -> list[str]:
    return [warning["message"] for warning in warnings or ()]


def submit(
    options: Start, file: tuple[ArtifactWriter, str] | None, idempotency: Idempotency = None, title: str | None = None
) -> tuple[Batch, Sequence[str] | None]:
    """Create a batch from a file and its name, or from the inline prompts if there is no file.

    It is called by its metadata's `name`, else `title`, else as its file, or after its first inline prompt. Return it,
    and the order of the columns where the template has all of them. Raises RequestError, UnavailableError.
    """
    if file is None:
        texts = options.prompts or []
        title = title or prompts.title_of(texts if isinstance(texts, str) else next(iter(texts), ""))
    source, columns = _input(options, file)
    return make(options, source, idempotency, title), columns


def make(options: Start, source: File | NewInput, idempotency: Idempotency = None, title: str | None = None) -> Batch:
    """Create a batch of a file of whole requests. It is called `title`, else as the file. Raises RateLimitError."""
    return batches.create_once(idempotency, lambda: _draft(options, source, title))[0]


def forecast_of(options: Start, first_line: bytes, size: int) -> tuple[int, Forecast | None]:
    """Return until when a batch of `size` bytes that begin with this line would have to be done, and its forecast."""
    context, batch = current_context(), batches.record_of(options)
    return submission.due_if_created_now(context, batch), submission.forecast_of(context, batch, first_line, size)


def _draft(options: Start, source: File | NewInput, title: str | None = None) -> Draft:
    return submission.draft(current_context(), batches.record_of(options, name=title), source)


def _input(options: Start, file: tuple[ArtifactWriter, str] | None) -> tuple[NewInput, Sequence[str] | None]:
    """Return the requests of a file or of inline prompts, and the order of all columns, if any. Raises RequestError."""
    context, of_input = current_context(), input_options(options)
    if file is None:
        texts = prompts.of_list(options.prompts or [])
        return NewInput("prompts.jsonl", inputs.of_prompts(context, of_input, texts)), None
    upload, name = file
    if not upload.stored:
        upload.commit()
    of_input = inputs.ordered(context, of_input, upload, name)
    order = None if of_input.template is None else of_input.template.order
    # It holds requests now, in any case.
    return NewInput(f"{prompts.kind_of(name).stem}.jsonl", inputs.of_file(context, of_input, upload, name)), order


def input_options(options: Start) -> InputOptions:
    """Return those of the options that prompts become requests with."""
    return InputOptions(
        endpoint=options.endpoint,
        model=options.model,
        system=options.system,
        template=None if options.template is None else prompts.template_of(options.template),
        null_values=options.null_values,
        parameters={name: value for name in PARAMETERS if (value := getattr(options, name)) is not None},
        sampling=options.sampling,
        post_process=options.post_process,
        skip_invalid=options.on_invalid == "skip",
        explicit=options.model_fields_set & OF_PROMPTS,
    )
