"""POST /start: prompts in, a batch out, in one step; for people with curl or a form."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Any

import flask
from flask import Blueprint, url_for
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from batchyard.errors import RequestError
from batchyard.models import Endpoint
from store.artifacts import Writer
from tasks import prompts, submission
from tasks.lines import LineError, cut
from tasks.validation import MAX_MESSAGE, Validator
from webapp import wire
from webapp.batches import announce
from webapp.document import operation
from webapp.files import uploaded
from webapp.requests import caller, current_house, form, parse_body

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
    owner = caller()
    house = current_house()
    is_form = flask.request.mimetype in ("multipart/form-data", "application/x-www-form-urlencoded")
    sent = uploaded() if is_form else None
    asked = form(StartForm) if is_form else parse_body(Start, max_bytes=house.settings.max_file_bytes)
    submission.check_window(house.settings, asked.completion_window)
    if (sent is None) == (asked.prompts is None):
        raise RequestError(
            "Send prompts either inline as 'prompts' or as a 'file'.",
            code="missing_required_parameter",
            param="prompts",
        )
    if sent is None:
        name, source = "prompts.jsonl", _requests(asked, prompts.of_list(asked.prompts or []))
    else:
        upload, name = sent
        upload.commit()
        source = _of_file(asked, upload, name)
    with house.database.write() as session:
        file = submission.name_input(session, owner.project_id, name, source)
        batch = submission.submit(
            house,
            session,
            owner.project_id,
            input_file=file,
            endpoint=asked.endpoint,
            completion_window=asked.completion_window,
            metadata=asked.metadata,
            post_process=asked.post_process,
            output_expires_after=None,
        )
    announce(batch)
    answer = Started(
        job_id=batch.id,
        batch_id=batch.id,
        file_id=file.id,
        status_url=url_for("batches.retrieve", batch_id=batch.id, _external=True),
    )
    return answer.model_dump(), 202


def _of_file(asked: Start, upload: Writer, name: str) -> Writer:
    suffix = PurePosixPath(name).suffix.lower()
    kind = prompts.FORMATS.get(suffix)
    if kind is None:
        raise RequestError(
            f"Cannot tell from the name '{name}' what the file holds; name it {', '.join(prompts.FORMATS)}.",
            code="invalid_value",
            param="file",
        )
    with current_house().artifacts.open(upload.sha256) as file:
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


def _requests(asked: Start, found: Iterable[prompts.Prompt]) -> Writer:
    """Store a request for each prompt. Raises RequestError, for what no request of this kind could be, too."""
    house = current_house()
    if asked.model is None:
        served = ", ".join(sorted(house.models))
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
    recipe = prompts.Recipe(asked.endpoint, asked.model, asked.system, named | asked.sampling)
    validator = Validator(house.models, asked.endpoint, house.settings.max_requests)

    def check(request: dict[str, Any]) -> None:
        try:
            validator.check(request)
        except LineError as error:
            param = (error.param or "").removeprefix("body.") or None
            raise RequestError(cut(error.message, MAX_MESSAGE), code=error.code, param=param) from None

    return prompts.write(house.artifacts, found, recipe, check, house.settings.max_requests)
