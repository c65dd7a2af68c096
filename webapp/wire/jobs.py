"""The models of /v1/jobs, and of /v1/recipes, the programs that jobs can run."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel, StringConstraints

from batchyard.statuses import RETRIABLE_STATES, JobStatus, RetriableState
from store.jobs.dependencies import MAX_DEPENDENCIES, When
from webapp.wire import fields
from webapp.wire.batches import PlanState, PlanSummary
from webapp.wire.lists import Deleted, ListPage, QueryParams
from webapp.wire.start import CostEstimate
from webapp.wire.work import BatchErrors, Cost, Usage, WorkExtension, WorkObject

MAX_INLINE = 1000


class JobArtifactName(fields.OneOf):
    """A file that an ended batch or job has produced, by its name there."""

    choices = ("job_id", "batch_id")
    job_id: fields.Id | None = None
    batch_id: fields.Id | None = None
    name: str = Field(strict=True, max_length=128)


class JobInput(fields.OneOf):
    """Where the items come from: one of these."""

    choices = ("artifact", "prompts", "items")
    artifact: JobArtifactName | None = None
    prompts: list[Annotated[str, StringConstraints(strict=True)]] | None = Field(
        None, min_length=1, max_length=MAX_INLINE
    )
    items: list[fields.JsonObject] | None = Field(None, min_length=1, max_length=MAX_INLINE)


class JobOptions(fields.StrictBody):
    """How a job is run."""

    recipe: str = Field(strict=True, min_length=1, max_length=128)
    options: fields.JsonObject = Field(default_factory=dict, description="the recipe's own, see GET /v1/recipes")
    completion_window: fields.Window = "24h"
    seed: int = Field(0, strict=True, ge=0, lt=2**53, description="the seeds of all requests are drawn from it")
    name: fields.Name | None = None
    metadata: fields.Metadata | None = None
    output_expires_after: fields.ExpiresAfter | None = None
    callback_url: fields.CallbackUrl | None = Field(None, description=fields.CALLBACK_URL)
    post_process: fields.Steps = Field(
        default_factory=list, max_length=16, description="steps with a row an item: its columns, and its result's text"
    )


class Dependency(fields.StrictBody):
    """A job or a batch that has to end first: as completed, as anything else, or in any way."""

    id: fields.Id
    when: When = "afterok"


class CreateJob(fields.Repeatable, JobOptions):
    """The body of POST /v1/jobs. It has one of `input_file_id` and `input`."""

    input_file_id: fields.Id | None = Field(
        None, description="a .parquet, .jsonl, .csv or .txt file of purpose user_data"
    )
    input: JobInput | None = None
    depends_on: list[Dependency] = Field(
        default_factory=list,
        max_length=MAX_DEPENDENCIES,
        description="it waits for these; an artifact as input adds its own",
    )
    plan: fields.PlanRequest | None = Field(
        None, description="answer a random sample of the items first, then pause; not for recipes that start jobs"
    )
    stop_when: fields.StopWhen | None = Field(None, description=fields.STOP_WHEN)
    answers_from: fields.Id | None = Field(
        None, description="an ended job of the same recipe, input, seed and models; requests it has answered do not run"
    )


class JobPlanReport(PlanSummary):
    """The forecast for all items of a job, from its sample. An item has the tokens and flaws of its answers."""

    object: Literal["job.plan"] = "job.plan"
    job_id: str


class Rescore(fields.Repeatable, fields.StrictBody):
    """The body of POST /v1/jobs/{id}/rescore."""

    options: fields.JsonObject = Field(default_factory=dict, description="options that only judge, see GET /v1/recipes")


class RetryJob(fields.Repeatable, fields.StrictBody):
    """The body of POST /v1/jobs/{id}/retry: what is left out is as it was in the job that is retried."""

    states: list[RetriableState] = Field(
        default_factory=lambda: list(RETRIABLE_STATES),
        min_length=1,
        max_length=len(RETRIABLE_STATES),
        description="of the items that it takes",
    )
    options: fields.JsonObject = Field(default_factory=dict, description="those that are to be others")
    completion_window: fields.Window | None = None


class ItemCounts(BaseModel):
    """Items by their state. When all have ended, the states add up to `total`."""

    total: int
    completed: int
    failed: int
    stuck: int = Field(description="ended without a result, for a person to look at")
    expired: int
    cancelled: int


class StageObject(BaseModel):
    """A stage of a job. All its requests are in one batch."""

    name: str
    batch_id: str | None = Field(description="null: it has no request yet")
    status: str | None = Field(description="of its batch")
    issued: int = Field(description="requests so far")
    answered: int
    failed: int = Field(description="those of the answered that failed")
    expected: int | None = Field(description="requests that it will have; null: not known yet")


class WarningObject(BaseModel):
    code: str
    message: str


class JobExtension(WorkExtension):
    """What there is to say of a job beside the fields that it shares with a batch. ETA is null until measured."""

    held: str | None = Field(description="why it does not move though it has not ended; it is tried again")
    attempts: int = Field(description="how often in a row that has failed")
    options: dict[str, Any] = Field(description="with the recipe's defaults")
    seed: int
    input_sha256: str
    items_sha256: str | None
    recipe_sha256: str
    config_sha256: str = Field(description="identifies all that the outcome depends on")
    work_sha256: str = Field(description="identifies all that the requests depend on")
    admitted: int = Field(description="items that have begun")
    waiting_for_verdict: int = Field(description="items that wait for a verdict")
    restarted: int = Field(description="items that began again because the recipe's file has changed")
    reused: int = Field(description="requests that another job had answered")
    counters: dict[str, int] = Field(description="what the recipe's results have counted")
    amendments: int = Field(description="items that were resolved after its end")
    metrics: dict[str, Any] | None = Field(description="null until it has ended")
    report: dict[str, Any] | None
    stages: list[StageObject]
    plan: PlanState | None = Field(None, description="null: the job was created without a plan")
    stop_when: fields.StopWhen | None = Field(None, description="limits that have not paused it yet; null: none")
    depends_on: list[dict[str, Any]]
    answers_from: str | None
    retry_of: str | None = Field(description="the job whose items that did not complete are these")
    retries: list[str] = Field(description="the jobs that retry this one")
    parent_id: str | None
    child_key: str | None
    variant: str | None
    children: list[str]
    cost: Cost | None = Field(
        description="of its batches and of the jobs that it has started, so far; null: no tariff, or several currencies"
    )
    warnings: list[WarningObject]


class JobObject(WorkObject):
    """A run of a recipe. Fields that a batch has, too, mean the same."""

    object: Literal["job"] = "job"
    status: JobStatus
    recipe: str
    name: str | None
    input_file_id: str | None
    request_counts: ItemCounts
    usage: Usage = Field(description="the sum over its batches, and over those of the jobs that it has started")
    batchyard: JobExtension


class JobDeleted(Deleted):
    object: Literal["job"] = "job"


JobPage = ListPage[JobObject]


class DryRunStage(BaseModel):
    name: str
    endpoint: str
    expected: int | None = Field(description="requests; null: they depend on the answers")
    least: int | None = Field(description="requests if each item succeeds at once; null: not known")
    most: int | None = Field(description="no more requests than these; null: not known")


class CellObject(BaseModel):
    """A configuration that a tune would measure."""

    name: str
    model: str
    overrides: dict[str, Any] = Field(description="{key of the model's entry: value}")
    concurrency: int = Field(description="equal batches side by side")


class FirstRequestObject(BaseModel):
    """A request of the first item's first turn."""

    stage: str
    endpoint: str
    body: dict[str, Any]


class DryRun(BaseModel):
    """What a job would be. It was not created."""

    object: Literal["job.dry_run"] = "job.dry_run"
    items: int | None = Field(description="null: its input cannot be read, or is not there yet")
    stages: list[DryRunStage]
    eta_seconds: float | None = Field(description="null: nobody can know, and `warnings` say why")
    eta_earliest_seconds: float | None = Field(
        description="with the least requests, where `eta_seconds` is null since they depend on the answers"
    )
    eta_latest_seconds: float | None = Field(description="with the most requests, likewise")
    due_at: int = Field(description="until when it would have to be done, by its window and the project's tier")
    on_time: bool | None = Field(description="whether it would be done by then; null: nobody can know")
    cost: CostEstimate | None = Field(
        description="what it would cost; null: a model has no tariff, or nobody knows how many requests there will be"
    )
    requests: list[FirstRequestObject] = Field(description="of the first item's first turn")
    errors: BatchErrors | None = Field(description="of the first rows; the job would fail with them")
    config_sha256: str
    work_sha256: str
    same_as: str | None = Field(description="the newest job that is the same in everything")
    warnings: list[WarningObject]
    cells: list[CellObject] = Field(description="of recipe `tune`; what fails may lead to further ones")


class CreatedJob(RootModel[JobObject | DryRun]):
    """The job, or with `dry_run` what it would be."""


class CreateQuery(QueryParams):
    dry_run: bool = Field(False, description="create nothing: say what the job would be")


class ListJobs(QueryParams):
    status: JobStatus | None = None
    recipe: str | None = Field(None, min_length=1, max_length=128)
    parent_id: str | None = Field(None, min_length=1, max_length=64, description="only the jobs that this one started")
    after: str | None = Field(None, description="the id of the last job of the page before")
    limit: int = Field(20, ge=1, le=100)


class RewardObject(BaseModel):
    name: str
    data_sources: list[str] = Field(description="those of which it scores the answers if a job names no reward")
    columns: list[str] = Field(description="what a row needs; a dot goes into an object")


class GateObject(BaseModel):
    name: str


class RecipeObject(BaseModel):
    """A program that jobs can run."""

    name: str
    object: Literal["recipe"] = "recipe"
    summary: str
    stages: list[str] | None = Field(
        description="with the defaults of its options; null: they depend on one without a default"
    )
    options: dict[str, Any] = Field(description="JSON Schema")
    judgement: list[str] = Field(description="the options that only judge answers, and so cost no request")
    main: str = Field(description="the artifact with the results")
    sha256: str = Field(description="of the file that defines it")


class RecipePage(ListPage[RecipeObject]):
    """All recipes, and what they may name."""

    rewards: list[RewardObject]
    gates: list[GateObject]
