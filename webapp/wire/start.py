"""The models of POST /start."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from batchyard.endpoints.guards import Guard
from batchyard.endpoints.path import EndpointPath
from batchyard.statuses import Priority
from webapp.wire import fields
from webapp.wire.lists import QueryParams

PARAMETERS = ("temperature", "top_p", "max_tokens", "seed", "stop", "response_format")

_COLUMNS = "the order of all columns, where the template has {*}; null: there is none, or each row has its own"


class Started(BaseModel):
    """What POST /start answers. Without a recipe the job is one batch, and has its id."""

    job_id: str
    batch_id: str | None = Field(description="null: the job is a recipe's")
    file_id: str | None
    status_url: str
    columns: list[str] | None = Field(None, description=_COLUMNS)
    warnings: list[str] = Field(default_factory=list, description="what in the first request is most likely a mistake")


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
    columns: list[str] | None = Field(None, description=_COLUMNS)
    warnings: list[str] = Field(default_factory=list, description="what in the first request is most likely a mistake")


class StartAnswer(RootModel[Started | StartDryRun]):
    """What was started, or with `dry_run` what would be."""


class StartQuery(QueryParams):
    dry_run: bool = Field(False, description="create nothing: say how many requests there are, and when they are done")


class Start(fields.StrictBody):
    """Prompts inline, or in a form's `file`; how to run them, and until when."""

    model: str | None = Field(None, description="needed unless the file holds whole requests")
    prompts: list[str] | str | None = Field(None, description="a list, or a text with one prompt a line")
    endpoint: EndpointPath = "/v1/chat/completions"
    system: str | None = Field(None, description="system message of every chat")
    template: str | None = Field(
        None, description="prompt with columns of a file, 'Translate {text}', or with all: {*}"
    )
    null_values: Annotated[list[str], fields.JsonText] = Field(
        default_factory=list, max_length=20, description="cells of csv and tsv that count as empty: ['NA', 'null']"
    )
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: Annotated[list[str] | str | None, fields.JsonText] = None
    response_format: Annotated[dict[str, Any] | None, fields.JsonText] = Field(
        None, description="the form of answers, such as a JSON schema, for engines that have structured output"
    )
    sampling: Annotated[dict[str, Any], fields.JsonText] = Field(
        default_factory=dict, description="any other parameters of the request body"
    )
    recipe: str | None = Field(None, min_length=1, max_length=128, description="start a job of this recipe")
    options: Annotated[fields.JsonObject, fields.JsonText] = Field(
        default_factory=dict, description="the recipe's, instead of a model and its parameters"
    )
    completion_window: fields.Window = "24h"
    metadata: Annotated[fields.Metadata | None, fields.JsonText] = None
    post_process: Annotated[fields.Steps, fields.JsonText] = Field(default_factory=list, max_length=16)
    callback_url: fields.CallbackUrl | None = Field(None, description=fields.CALLBACK_URL)
    on_invalid: fields.OnInvalid = Field("fail", description=fields.ON_INVALID)
    priority: Priority = Field("normal", description=fields.PRIORITY)
    stop_when: Annotated[fields.StopWhen | None, fields.JsonText] = Field(None, description=fields.STOP_WHEN)
    guard: Guard | None = Field(None, description=fields.GUARD)
    plan: Annotated[fields.PlanRequest | None, fields.JsonText] = Field(None, description=fields.PLAN)


class StartForm(Start):
    model_config = ConfigDict(json_schema_extra=fields.declare_file(required=False))
