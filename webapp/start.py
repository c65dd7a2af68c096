"""POST /start: create a batch from prompts in one request, for curl and forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import IO, Annotated, Any, Literal

import flask
from flask import Blueprint, url_for
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel

from batchyard import tariffs
from batchyard.errors import RequestError
from batchyard.statuses import PRIORITIES, Endpoint, Priority
from batchyard.tables import formats
from batchyard.tables.formats import Format, TableError
from batchyard.wording import MAX_MESSAGE, cut
from store.artifacts import Writer
from store.records import Batch, File
from tasks.intake import estimate, prompts, submission
from tasks.intake.estimate import Part
from tasks.intake.lines import LineError
from tasks.intake.requests import RequestChecker
from tasks.intake.submission import Draft, NewInput
from tasks.jobs.submission import creation as job_submission
from tasks.jobs.submission.creation import JobRequest
from tasks.steps import registry as steps
from webapp import batches, wire, work
from webapp.document import operation
from webapp.files import uploaded
from webapp.idempotency import Idempotency
from webapp.job_wire import JsonObject
from webapp.jobs import create_once as create_job_once
from webapp.requests import caller, current_context, form, parse_body, query

routes = Blueprint("start", __name__)
JsonText = BeforeValidator(wire.from_json_text)
PARAMETERS = ("temperature", "top_p", "max_tokens", "seed", "stop", "response_format")
MAX_TITLE = 60
SAMPLE = 1000
"""So many requests of a file say what the others are like."""
OF_PROMPTS = {"model", "system", "template", "null_values", "sampling", *PARAMETERS}
OF_A_BATCH = {"endpoint", "on_invalid", "priority", *OF_PROMPTS}


class Started(BaseModel):
    """What POST /start answers. Without a recipe the job is one batch, and has its id."""

    job_id: str
    batch_id: str | None = Field(description="null: the job is a recipe's")
    file_id: str | None
    status_url: str


class CostEstimate(BaseModel):
    """What a batch would cost if its requests used what those of the project's latest batches did."""

    currency: str
    amount: str | None = Field(description="null: the project has had no batch of a model, so nobody knows")
    least: str | None = Field(description="as in the cheapest of these; of fewer than 3, at most half of `amount`")
    most: str | None = Field(description="as in the dearest of them; of fewer than 3, at least twice `amount`")
    batches: int = Field(description="how many batches this is from")


class StartDryRun(BaseModel):
    """What a batch would be. It was not created."""

    object: Literal["batch.dry_run"] = "batch.dry_run"
    requests: int
    bytes: int = Field(description="of the input file with its requests")
    due_at: int = Field(description="until when it would have to be done, by its window and the project's tier")
    eta_seconds: float | None = Field(description="null: nothing like it was measured yet")
    eta_earliest_seconds: float | None
    eta_latest_seconds: float | None
    on_time: bool | None = Field(description="whether it would be done by then; null: no ETA")
    cost: CostEstimate | None = Field(description="what it would cost; null: a model has no tariff")


class StartAnswer(RootModel[Started | StartDryRun]):
    """What was started, or with `dry_run` what would be."""


class StartQuery(BaseModel):
    dry_run: bool = Field(False, description="create nothing: say how many requests there are, and when they are done")


class Start(BaseModel):
    """Prompts inline, or in a form's `file`; how to run them, and until when."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = Field(None, description="needed unless the file holds whole requests")
    prompts: list[str] | str | None = Field(None, description="a list, or a text with one prompt a line")
    endpoint: Endpoint = "/v1/chat/completions"
    system: str | None = Field(None, description="system message of every chat")
    template: str | None = Field(None, description="prompt with the columns of a file: 'Translate {text}'")
    null_values: Annotated[list[str], JsonText] = Field(
        default_factory=list, max_length=20, description="cells of csv and tsv that count as empty: ['NA', 'null']"
    )
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: Annotated[list[str] | str | None, JsonText] = None
    response_format: Annotated[dict[str, Any] | None, JsonText] = Field(
        None, description="the form of answers, such as a JSON schema, for engines that have structured output"
    )
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
    priority: Priority = Field("normal", description=wire.PRIORITY)


class StartForm(Start):
    model_config = ConfigDict(json_schema_extra=wire.declare_file(required=False))


@routes.post("/start")
@operation(StartAnswer, status=202, query=StartQuery, json=Start, form=StartForm, refusals=(403, 413))
def start() -> tuple[dict[str, Any], int]:
    """Start a batch from prompts, sent as JSON or as a form; or a job of a recipe.

    With `dry_run` nothing is started, and the answer says what a batch would be.
    """
    caller()
    params = query(StartQuery)
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
    if body.recipe is not None and params.dry_run:
        raise RequestError("A recipe's dry run is one of POST /v1/jobs.", code="invalid_value", param="dry_run")
    if body.recipe is not None:
        return _start_job(body, body.recipe, file).model_dump(), 202
    if body.options:
        raise RequestError("'options' are a recipe's; name it.", code="missing_required_parameter", param="recipe")
    if params.dry_run:
        return _dry_run(body, file).model_dump(), 202
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
        post_process=options.post_process,
        admin=caller().admin,
    )
    job = create_job_once(None, lambda: job_submission.draft(current_context(), caller().project_id, request)).record
    status_url = url_for("jobs.retrieve", job_id=job.id, _external=True)
    return Started(job_id=job.id, batch_id=None, file_id=job.input_file_id, status_url=status_url)


def _dry_run(options: Start, file: tuple[Writer, str] | None) -> StartDryRun:
    """Count the requests of an input and forecast them. Raises RequestError if there are none."""
    context, source = current_context(), _input(options, file)
    with context.artifacts.open(source.content.sha256) as content:
        lines = (line for line in content if line.strip())
        sample = list(islice(lines, SAMPLE))
        requests = len(sample) + sum(1 for _ in lines)
    deadline, forecast = submission.dry_run(context, _draft(options, source))
    parts = estimate.parts(options.endpoint, sample)
    cost = cost_of(estimate.scaled(parts, requests / len(sample)) if sample else {})
    return StartDryRun(
        requests=requests,
        bytes=source.content.size,
        due_at=deadline,
        **work.eta(forecast),
        on_time=None if forecast is None else forecast.at <= deadline,
        cost=cost,
    )


def cost_of(parts: Mapping[str, Part]) -> CostEstimate | None:
    """Return what requests of the caller's project would cost; None if one of their models has no tariff."""
    context = current_context()
    with context.database.read() as session:
        expected = estimate.estimate(context, session, caller().project_id, parts)
    if expected is None:
        return None
    sums = {name: getattr(expected, name) for name in ("amount", "least", "most")}
    texts = {name: None if value is None else tariffs.decimal(value) for name, value in sums.items()}
    return CostEstimate(currency=expected.currency, batches=expected.batches, **texts)


def submit(
    options: Start, file: tuple[Writer, str] | None, idempotency: Idempotency = None, title: str | None = None
) -> Batch:
    """Create a batch from a file and its name, or from the inline prompts if there is no file.

    It is called `title` if it has no name of its own, else as its file, or after its first inline prompt.

    Raises:
        RequestError, UnavailableError.
    """
    if file is None:
        inputs = options.prompts or []
        title = title or title_of(inputs if isinstance(inputs, str) else next(iter(inputs), ""))
    return make(options, _input(options, file), idempotency, title)


def title_of(text: str) -> str | None:
    """Return what a batch without a name is called after its first prompt; None for a blank text."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    return cut(" ".join(first.split()), MAX_TITLE) or None


def make(options: Start, source: File | NewInput, idempotency: Idempotency = None, title: str | None = None) -> Batch:
    """Create a batch of a file of whole requests. It is called `title`, else as the file. Raises RateLimitError."""
    return batches.create_once(idempotency, lambda: _draft(options, source, title)).batch


def _draft(options: Start, source: File | NewInput, title: str | None = None) -> Draft:
    return submission.draft(
        current_context(),
        caller().project_id,
        source,
        endpoint=options.endpoint,
        completion_window=options.completion_window,
        metadata=options.metadata,
        name=title,
        post_process=options.post_process,
        output_expires_after=None,
        on_invalid=options.on_invalid,
        priority=PRIORITIES[options.priority],
    )


def _input(options: Start, file: tuple[Writer, str] | None) -> NewInput:
    """Return the requests of a file with a name, or of the inline prompts. Raises RequestError, UnavailableError."""
    if file is None:
        return NewInput("prompts.jsonl", requests_of(options, prompts.of_list(options.prompts or [])))
    upload, name = file
    if not upload.stored:
        upload.commit()
    # It holds requests now, in any case.
    return NewInput(f"{prompts.kind_of(name).stem}.jsonl", _of_file(options, upload, name))


def _of_file(options: Start, upload: Writer, name: str) -> Writer:
    """Return a file of whole requests as it is; store a request for each prompt of any other file."""
    kind = prompts.kind_of(name).format
    if kind == "jsonl":
        with opened(upload, name) as file:
            holds_requests = prompts.is_requests(file, current_context().settings.max_line_bytes)
        if holds_requests:
            names = options.model_fields_set & OF_PROMPTS
            if names:
                raise RequestError(
                    "The file holds whole requests, which say themselves how they are run; leave this out.",
                    code="invalid_value",
                    param=min(names),
                )
            return decompressed(upload, name)
    with opened(upload, name) as file:
        return requests_of(options, prompts_of(options, file, kind))


def prompts_of(options: Start, file: IO[bytes], kind: Format) -> Iterator[prompts.Prompt]:
    """Yield the prompts of a file while reading it. Raises RequestError."""
    max_line_bytes = current_context().settings.max_line_bytes
    return prompts.of_file(file, kind, options.template, null_values=options.null_values, max_line_bytes=max_line_bytes)


@contextmanager
def opened(upload: Writer | File, name: str) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if its name says that it is compressed. Raises RequestError if it cannot be read."""
    context = current_context()
    with context.artifacts.open(upload.sha256) as file:
        try:
            yield formats.decompressed(file, formats.compression_of(name), context.settings.max_file_bytes)
        except TableError as error:
            raise prompts.refused(error) from None


def decompressed(upload: Writer, name: str) -> Writer:
    """Store a compressed file anew as what it holds; return any other as it is."""
    if formats.compression_of(name) is None:
        return upload
    with opened(upload, name) as file, current_context().artifacts.create() as target:
        while content := file.read(1 << 20):
            target.write(content)
    return target


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


def requests_of(options: Start, inputs: Iterable[prompts.Prompt]) -> Writer:
    """Store a request for each prompt. Raises RequestError if the first request is invalid or a prompt is unusable."""
    context = current_context()
    common = request_template(options)
    checker = RequestChecker(context.models, steps.checks(options.post_process))

    def check(request: dict[str, Any]) -> None:
        try:
            checker.check(options.endpoint, request)
        except LineError as error:
            param = (error.param or "").removeprefix("body.") or None
            raise RequestError(cut(error.message, MAX_MESSAGE), code=error.code, param=param) from None

    skip_invalid = options.on_invalid == "skip"
    return prompts.write(
        context.artifacts, inputs, common, check, context.settings.max_requests, skip_invalid=skip_invalid
    )
