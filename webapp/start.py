"""POST /start: create a batch from prompts in one request, for curl and forms."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Any

import flask
from flask import Blueprint, url_for
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from batchyard.errors import RequestError
from batchyard.statuses import Endpoint
from batchyard.wording import MAX_MESSAGE, cut
from store.artifacts import Writer
from store.records import Batch, File
from tasks.intake import prompts, submission
from tasks.intake.lines import LineError
from tasks.intake.submission import Draft, NewInput
from tasks.intake.validation import Validator
from tasks.jobs import submission as job_submission
from tasks.jobs.submission import JobRequest
from webapp import wire
from webapp.batches import create_once
from webapp.document import operation
from webapp.files import uploaded
from webapp.idempotency import Idempotency
from webapp.job_wire import JsonObject
from webapp.jobs import create_once as create_job_once
from webapp.requests import caller, current_context, form, parse_body

routes = Blueprint("start", __name__)
JsonText = BeforeValidator(wire.from_json_text)
PARAMETERS = ("temperature", "top_p", "max_tokens", "seed", "stop")
OF_A_BATCH = {"model", "endpoint", "system", "template", "sampling", "post_process", "on_invalid", *PARAMETERS}


class Started(BaseModel):
    """What POST /start answers. Without a recipe the job is one batch, and has its id."""

    job_id: str
    batch_id: str | None = Field(description="null: the job is a recipe's")
    file_id: str | None
    status_url: str


class Start(BaseModel):
    """Prompts inline, or in a form's `file` (.txt, .csv, .jsonl); how to run them, and until when."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = Field(None, description="needed unless the file holds whole requests")
    prompts: list[str] | str | None = Field(None, description="a list, or a text with one prompt a line")
    endpoint: Endpoint = "/v1/chat/completions"
    system: str | None = Field(None, description="system message of every chat")
    template: str | None = Field(None, description="prompt with the columns of a file: 'Translate {text}'")
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: Annotated[list[str] | str | None, JsonText] = None
    sampling: Annotated[dict[str, Any], JsonText] = Field(
        default_factory=dict, description="any other parameters of the request body"
    )
    recipe: str | None = Field(None, min_length=1, max_length=128, description="start a job of this recipe")
    options: Annotated[JsonObject, JsonText] = Field(
        default_factory=dict, description="the recipe's, instead of a model and its parameters"
    )
    completion_window: wire.Window = "24h"
    metadata: Annotated[wire.Metadata | None, JsonText] = None
    post_process: Annotated[wire.Steps, JsonText] = Field(default_factory=list, max_length=16)
    on_invalid: wire.OnInvalid = Field("fail", description=wire.ON_INVALID)


class StartForm(Start):
    model_config = ConfigDict(json_schema_extra=wire.declare_file(required=False))


@routes.post("/start")
@operation(Started, status=202, json=Start, form=StartForm, refusals=(413,))
def start() -> tuple[dict[str, Any], int]:
    """Start a batch from prompts, sent as JSON or as a form; or a job of a recipe."""
    caller()
    context = current_context()
    is_form = flask.request.mimetype in ("multipart/form-data", "application/x-www-form-urlencoded")
    file = uploaded() if is_form else None
    body = form(StartForm) if is_form else parse_body(Start, bulk=True)
    submission.check_window(context.settings, body.completion_window)
    if (file is None) == (body.prompts is None):
        raise RequestError(
            "Send prompts either inline as 'prompts' or as a 'file'.",
            code="missing_required_parameter",
            param="prompts",
        )
    if body.recipe is not None:
        return _start_job(body, body.recipe, file).model_dump(), 202
    if body.options:
        raise RequestError("'options' are a recipe's; name it.", code="missing_required_parameter", param="recipe")
    batch = submit(body, file)
    answer = Started(
        job_id=batch.id,
        batch_id=batch.id,
        file_id=batch.input_file_id,
        status_url=url_for("batches.retrieve", batch_id=batch.id, _external=True),
    )
    return answer.model_dump(), 202


def _start_job(options: Start, recipe: str, file: tuple[Writer, str] | None) -> Started:
    """Create a job of the rows of a file, or of the inline prompts. Raises RequestError."""
    names = options.model_fields_set & OF_A_BATCH
    if names:
        raise RequestError(
            "A job's requests are its recipe's; say this in 'options', or leave it out.",
            code="invalid_value",
            param=min(names),
        )
    if file is None:
        source: Any = [{"prompt": prompt.content} for prompt in prompts.of_list(options.prompts or [])]
        if not source:
            raise prompts.none()
    else:
        upload, name = file
        upload.commit()
        source = NewInput(name, upload)
    request = JobRequest(
        recipe=recipe,
        input=source,
        options=options.options,
        completion_window=options.completion_window,
        metadata=options.metadata,
    )
    job = create_job_once(None, lambda: job_submission.draft(current_context(), caller().project_id, request)).record
    status_url = url_for("jobs.retrieve", job_id=job.id, _external=True)
    return Started(job_id=job.id, batch_id=None, file_id=job.input_file_id, status_url=status_url)


def submit(options: Start, file: tuple[Writer, str] | None, idempotency: Idempotency = None) -> Batch:
    """Create a batch from a file and its name, or from the inline prompts if there is no file.

    Raises:
        RequestError, UnavailableError.
    """
    if file is None:
        name, content = "prompts.jsonl", _requests(options, prompts.of_list(options.prompts or []))
    else:
        upload, name = file
        if not upload.stored:
            upload.commit()
        content = _of_file(options, upload, name)
        name = PurePosixPath(name).with_suffix(".jsonl").name  # it holds requests now, in any case
    return make(options, NewInput(name, content), idempotency)


def make(options: Start, source: File | NewInput, idempotency: Idempotency = None) -> Batch:
    """Create a batch of a file of whole requests. Raises RateLimitError."""

    def draft() -> Draft:
        return submission.draft(
            current_context(),
            caller().project_id,
            source,
            endpoint=options.endpoint,
            completion_window=options.completion_window,
            metadata=options.metadata,
            post_process=options.post_process,
            output_expires_after=None,
            on_invalid=options.on_invalid,
        )

    return create_once(idempotency, draft).batch


def format_of(name: str) -> prompts.Format:
    """Return the format of a file by its name. Raises RequestError if unknown."""
    kind = prompts.FORMATS.get(PurePosixPath(name).suffix.lower())
    if kind is None:
        raise RequestError(
            f"Cannot tell from the name '{name}' what the file holds; name it {', '.join(prompts.FORMATS)}.",
            code="invalid_value",
            param="file",
        )
    return kind


def _of_file(options: Start, upload: Writer, name: str) -> Writer:
    """Return a file of whole requests as it is; store a request for each prompt of any other file."""
    kind = format_of(name)
    with current_context().artifacts.open(upload.sha256) as file:
        if kind == "jsonl" and prompts.is_requests(file):
            names = options.model_fields_set & {"model", "system", "template", "sampling", *PARAMETERS}
            if names:
                raise RequestError(
                    "The file holds whole requests, which say themselves how they are run; leave this out.",
                    code="invalid_value",
                    param=min(names),
                )
            return upload
        return _requests(options, prompts.of_file(file, kind, options.template))


def request_template(options: Start) -> prompts.RequestTemplate:
    """Return the options common to all requests. Raises RequestError."""
    if options.model is None:
        models = ", ".join(sorted(current_context().models))
        raise RequestError(
            f"Missing required parameter: 'model'; served here: {models}.",
            code="missing_required_parameter",
            param="model",
        )
    parameters = {name: value for name in PARAMETERS if (value := getattr(options, name)) is not None}
    duplicates = parameters.keys() & options.sampling.keys()
    if duplicates:
        name = min(duplicates)
        raise RequestError(f"'{name}' is given twice, by itself and in 'sampling'.", code="invalid_value", param=name)
    return prompts.RequestTemplate(options.endpoint, options.model, options.system, parameters | options.sampling)


def _requests(options: Start, inputs: Iterable[prompts.Prompt]) -> Writer:
    """Store a request for each prompt. Raises RequestError if the first request is invalid or a prompt is unusable."""
    context = current_context()
    common = request_template(options)
    validator = Validator(
        context.models, options.endpoint, context.settings.max_requests, post_process=options.post_process
    )

    def check(request: dict[str, Any]) -> None:
        try:
            validator.check(request)
        except LineError as error:
            param = (error.param or "").removeprefix("body.") or None
            raise RequestError(cut(error.message, MAX_MESSAGE), code=error.code, param=param) from None

    return prompts.write(context.artifacts, inputs, common, check, context.settings.max_requests)
