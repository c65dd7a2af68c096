"""POST /start: prompts in, a batch out, in one step; for people with curl or a form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Annotated, Any

import flask
from flask import Blueprint, url_for
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy.orm import Session

from batchyard.errors import RequestError
from batchyard.models import Endpoint
from batchyard.wording import MAX_MESSAGE, cut
from store.artifacts import Writer
from store.records import Batch, File
from tasks.intake import prompts, submission
from tasks.intake.lines import LineError
from tasks.intake.validation import Validator
from webapp import wire
from webapp.batches import Idempotency, announce, once
from webapp.document import operation
from webapp.files import uploaded
from webapp.requests import caller, current_context, form, parse_body

routes = Blueprint("start", __name__)
JsonText = BeforeValidator(wire.from_json_text)
PARAMETERS = ("temperature", "top_p", "max_tokens", "seed", "stop")


class Started(BaseModel):
    """What POST /start answers. A job that is one batch has that batch's id."""

    job_id: str
    batch_id: str
    file_id: str
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
    completion_window: wire.Window = "24h"
    metadata: Annotated[wire.Metadata | None, JsonText] = None
    post_process: Annotated[wire.Steps, JsonText] = Field(default_factory=list, max_length=16)


class StartForm(Start):
    model_config = ConfigDict(json_schema_extra=wire.declare_file(required=False))


@routes.post("/start")
@operation(Started, status=202, json=Start, form=StartForm, refusals=(413,))
def start() -> tuple[dict[str, Any], int]:
    """Start a batch from prompts, sent as JSON or as a form."""
    caller()
    context = current_context()
    is_form = flask.request.mimetype in ("multipart/form-data", "application/x-www-form-urlencoded")
    sent = uploaded() if is_form else None
    asked = form(StartForm) if is_form else parse_body(Start, max_bytes=context.settings.max_file_bytes)
    submission.check_window(context.settings, asked.completion_window)
    if (sent is None) == (asked.prompts is None):
        raise RequestError(
            "Send prompts either inline as 'prompts' or as a 'file'.",
            code="missing_required_parameter",
            param="prompts",
        )
    batch = submit(asked, sent)
    answer = Started(
        job_id=batch.id,
        batch_id=batch.id,
        file_id=batch.input_file_id,
        status_url=url_for("batches.retrieve", batch_id=batch.id, _external=True),
    )
    return answer.model_dump(), 202


def submit(asked: Start, sent: tuple[Writer, str] | None, idempotency: Idempotency = None) -> Batch:
    """A new batch of what was sent, a file and its name, or else of the prompts inline.

    Raises:
        RequestError, UnavailableError.
    """
    owner = caller()
    if sent is None:
        name, source = "prompts.jsonl", _requests(asked, prompts.of_list(asked.prompts or []))
    else:
        upload, name = sent
        if not upload.stored:
            upload.commit()
        source = _of_file(asked, upload, name)
        name = PurePosixPath(name).with_suffix(".jsonl").name  # whatever it was, it holds requests now
    return make(asked, lambda session: submission.name_input(session, owner.project_id, name, source), idempotency)


def make(asked: Start, input_file: Callable[[Session], File], idempotency: Idempotency = None) -> Batch:
    """A new batch of a file that holds whole requests, run as asked. Raises RateLimitError."""
    owner, context = caller(), current_context()
    with once(owner, idempotency) as (session, existing):
        batch = existing or submission.submit(
            context,
            session,
            owner.project_id,
            input_file=input_file(session),
            endpoint=asked.endpoint,
            completion_window=asked.completion_window,
            metadata=asked.metadata,
            post_process=asked.post_process,
            output_expires_after=None,
            idempotency=idempotency,
        )
    if existing is None:
        announce(batch)
    return batch


def format_of(name: str) -> prompts.Format:
    """What a file holds, by its name. Raises RequestError."""
    found = prompts.FORMATS.get(PurePosixPath(name).suffix.lower())
    if found is None:
        raise RequestError(
            f"Cannot tell from the name '{name}' what the file holds; name it {', '.join(prompts.FORMATS)}.",
            code="invalid_value",
            param="file",
        )
    return found


def _of_file(asked: Start, upload: Writer, name: str) -> Writer:
    kind = format_of(name)
    with current_context().artifacts.open(upload.sha256) as file:
        if kind == "jsonl" and prompts.is_requests(file):
            given = asked.model_fields_set & {"model", "system", "template", "sampling", *PARAMETERS}
            if given:
                raise RequestError(
                    "The file holds whole requests, which say themselves how they are run; leave this out.",
                    code="invalid_value",
                    param=min(given),
                )
            return upload
        return _requests(asked, prompts.of_file(file, kind, asked.template))


def recipe(asked: Start) -> prompts.Recipe:
    """What is the same for all requests. Raises RequestError."""
    if asked.model is None:
        served = ", ".join(sorted(current_context().models))
        raise RequestError(
            f"Missing required parameter: 'model'; served here: {served}.",
            code="missing_required_parameter",
            param="model",
        )
    named = {name: value for name in PARAMETERS if (value := getattr(asked, name)) is not None}
    twice = named.keys() & asked.sampling.keys()
    if twice:
        raise RequestError(
            f"'{min(twice)}' is given twice, by itself and in 'sampling'.", code="invalid_value", param=min(twice)
        )
    return prompts.Recipe(asked.endpoint, asked.model, asked.system, named | asked.sampling)


def _requests(asked: Start, found: Iterable[prompts.Prompt]) -> Writer:
    """Store a request for each prompt. Raises RequestError, for what no request of this kind could be, too."""
    context = current_context()
    same = recipe(asked)
    validator = Validator(context.models, asked.endpoint, context.settings.max_requests)

    def check(request: dict[str, Any]) -> None:
        try:
            validator.check(request)
        except LineError as error:
            param = (error.param or "").removeprefix("body.") or None
            raise RequestError(cut(error.message, MAX_MESSAGE), code=error.code, param=param) from None

    return prompts.write(context.artifacts, found, same, check, context.settings.max_requests)
