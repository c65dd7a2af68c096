"""The request and response models of /v1/recipes and /v1/jobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, StringConstraints, model_validator

from batchyard.statuses import RETRIABLE_STATES, ItemState, JobStatus, RetriableState
from store.records import Sla
from tasks.jobs.submission.dependencies import MOST, When
from webapp import wire

MAX_INLINE = 1000
MAX_DEPTH = 64

Id = Annotated[str, StringConstraints(strict=True, max_length=64)]


def _shallow(value: dict[str, Any]) -> dict[str, Any]:
    pending: list[tuple[Any, int]] = [(value, 1)]  # no recursion: clients nest as deep as they like
    while pending:
        outer, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
        inner = outer.values() if isinstance(outer, dict) else outer
        pending += [(entry, depth + 1) for entry in inner if isinstance(entry, dict | list)]
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_shallow)]


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


class RecipePage(wire.Page[RecipeObject]):
    """All recipes, and what they may name."""

    rewards: list[RewardObject]
    gates: list[GateObject]


class JobArtifactName(BaseModel):
    """A file that an ended batch or job has produced, by its name there."""

    model_config = ConfigDict(extra="forbid")
    job_id: Id | None = None
    batch_id: Id | None = None
    name: str = Field(strict=True, max_length=128)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.job_id is None) == (self.batch_id is None):
            raise ValueError("name one of 'job_id' and 'batch_id'")
        return self


class JobInput(BaseModel):
    """Where the items come from: one of these."""

    model_config = ConfigDict(extra="forbid")
    artifact: JobArtifactName | None = None
    prompts: list[Annotated[str, StringConstraints(strict=True)]] | None = Field(
        None, min_length=1, max_length=MAX_INLINE
    )
    items: list[JsonObject] | None = Field(None, min_length=1, max_length=MAX_INLINE)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if [self.artifact, self.prompts, self.items].count(None) != 2:
            raise ValueError("name one of 'artifact', 'prompts' and 'items'")
        return self


class JobOptions(BaseModel):
    """How a job is run. Unknown parameters are refused: a misspelt one must not be lost in silence."""

    model_config = ConfigDict(extra="forbid")
    recipe: str = Field(strict=True, min_length=1, max_length=128)
    options: JsonObject = Field(default_factory=dict, description="the recipe's own, see GET /v1/recipes")
    completion_window: wire.Window = "24h"
    seed: int = Field(0, strict=True, ge=0, lt=2**53, description="the seeds of all requests are drawn from it")
    name: wire.Name | None = None
    metadata: wire.Metadata | None = None
    output_expires_after: wire.ExpiresAfter | None = None
    post_process: wire.Steps = Field(
        default_factory=list, max_length=16, description="steps with a row an item: its columns, and its result's text"
    )


class Dependency(BaseModel):
    """A job or a batch that has to end first: as completed, as anything else, or in any way."""

    model_config = ConfigDict(extra="forbid")
    id: Id
    when: When = "afterok"


class CreateJob(wire.Repeatable, JobOptions):
    """The body of POST /v1/jobs. It has one of `input_file_id` and `input`."""

    input_file_id: Id | None = Field(None, description="a .parquet, .jsonl, .csv or .txt file of purpose user_data")
    input: JobInput | None = None
    depends_on: list[Dependency] = Field(
        default_factory=list, max_length=MOST, description="it waits for these; an artifact as input adds its own"
    )
    answers_from: Id | None = Field(
        None, description="an ended job of the same recipe, input, seed and models; requests it has answered do not run"
    )


class Rescore(wire.Repeatable):
    """The body of POST /v1/jobs/{id}/rescore."""

    model_config = ConfigDict(extra="forbid")
    options: JsonObject = Field(default_factory=dict, description="options that only judge, see GET /v1/recipes")


class RetryJob(wire.Repeatable):
    """The body of POST /v1/jobs/{id}/retry: what is left out is as it was in the job that is retried."""

    model_config = ConfigDict(extra="forbid")
    states: list[RetriableState] = Field(
        default_factory=lambda: list(RETRIABLE_STATES),
        min_length=1,
        max_length=len(RETRIABLE_STATES),
        description="of the items that it takes",
    )
    options: JsonObject = Field(default_factory=dict, description="those that are to be others")
    completion_window: wire.Window | None = None


class Verdict(BaseModel):
    """What a person or a CI says to an item that waits for it."""

    model_config = ConfigDict(extra="forbid")
    gate: str = Field(strict=True, min_length=1, max_length=128, description="the one that the item waits for")
    passed: bool = Field(strict=True)
    turn: int | None = Field(None, ge=0, description="the item's turn that it is about; null: the one it waits in")
    category: str | None = Field(None, strict=True, max_length=128, description="why it did not pass, in a word")
    message: str | None = Field(None, strict=True, max_length=65536, description="why, as a model is told")
    by: str | None = Field(None, strict=True, max_length=128)


class Requeue(BaseModel):
    """An item is to begin again."""

    model_config = ConfigDict(extra="forbid")
    hint: str | None = Field(None, strict=True, max_length=65536, description="what its prompts say besides")


class ItemReply(BaseModel):
    """The body of POST /v1/jobs/{id}/items/{number}: one of `text`, `verdict` and `requeue`."""

    model_config = ConfigDict(extra="forbid")
    text: str | None = Field(None, strict=True, description="completes an item that is stuck or failed")
    by: str | None = Field(None, strict=True, max_length=128, description="with `text`: who says so")
    verdict: Verdict | None = None
    requeue: Requeue | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(value is not None for value in (self.text, self.verdict, self.requeue)) != 1:
            raise ValueError("send one of 'text', 'verdict' and 'requeue'")
        if self.by is not None and self.text is None:
            raise ValueError("'by' stands beside 'text'; a verdict has its own")
        return self


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


class JobExtension(BaseModel):
    """What there is to say of a job beside the fields that it shares with a batch. ETA is null until measured."""

    created_by: str | None = Field(description="id of the key that created it; null: a schedule, or another job")
    eta_seconds: float | None
    eta_earliest_seconds: float | None
    eta_latest_seconds: float | None
    sla: Sla = Field(description="whether it will be done in time, and when it has ended, whether it was")
    due_at: int
    held: str | None = Field(description="why it does not move though it has not ended; it is tried again")
    attempts: int = Field(description="how often in a row that has failed")
    engine_deaths: int = Field(description="how often an engine has died that had requests of it")
    last_engine_death: wire.EngineDeath | None = Field(description="the last of these; null: there was none")
    paused_at: int | None = Field(description="since when its requests wait until somebody resumes it")
    paused_by: str | None = Field(description="what people call the key that has paused it")
    simulated: bool
    models: dict[str, str] = Field(description="engine of each model")
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
    artifacts: list[wire.ArtifactObject]
    post_process: list[dict[str, Any]] = Field(description="with the outcome of each step once it has run")
    stages: list[StageObject]
    depends_on: list[dict[str, Any]]
    answers_from: str | None
    retry_of: str | None = Field(description="the job whose items that did not complete are these")
    retries: list[str] = Field(description="the jobs that retry this one")
    parent_id: str | None
    child_key: str | None
    variant: str | None
    children: list[str]
    schedule_id: str | None = Field(description="the schedule that has made it")
    cost: wire.Cost | None = Field(
        description="of its batches and of the jobs that it has started, so far; null: no tariff, or several currencies"
    )
    warnings: list[WarningObject]


class JobObject(BaseModel):
    """A run of a recipe. Fields that a batch has, too, mean the same."""

    id: str
    object: Literal["job"] = "job"
    recipe: str
    name: str | None
    errors: wire.BatchErrors | None
    input_file_id: str | None
    completion_window: str
    status: JobStatus
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: ItemCounts
    usage: wire.Usage = Field(description="the sum over its batches, and over those of the jobs that it has started")
    metadata: dict[str, str] | None
    batchyard: JobExtension


class JobPage(wire.Page[JobObject]):
    pass


class DryRunStage(BaseModel):
    name: str
    endpoint: str
    expected: int | None = Field(description="requests; null: they depend on the answers")


class CellObject(BaseModel):
    """A configuration that a tune would measure."""

    name: str
    model: str
    overrides: dict[str, Any] = Field(description="{key of the model's entry: value}")
    concurrency: int = Field(description="equal batches side by side")


class DryRun(BaseModel):
    """What a job would be. It was not created."""

    object: Literal["job.dry_run"] = "job.dry_run"
    items: int | None = Field(description="null: its input cannot be read, or is not there yet")
    stages: list[DryRunStage]
    eta_seconds: float | None = Field(description="null: nobody can know, and `warnings` say why")
    config_sha256: str
    work_sha256: str
    same_as: str | None = Field(description="the newest job that is the same in everything")
    warnings: list[WarningObject]
    cells: list[CellObject] = Field(description="of recipe `tune`; what fails may lead to further ones")


class CreatedJob(RootModel[JobObject | DryRun]):
    """The job, or with `dry_run` what it would be."""


class ItemObject(BaseModel):
    """An item of a job in a list."""

    number: int = Field(description="row of the input, from 0")
    custom_id: str
    state: ItemState
    life: int = Field(description="1, and one more each time that it was put back")
    turn: int | None = Field(description="its turns; null: it has not ended, and waits for no verdict")
    stage: str | None = Field(description="the last in which it has a request; null: in none, or it has ended")
    reason: str | None = Field(description="error code of one that is failed or stuck; the gate that one waits for")


class ItemPage(wire.Page[ItemObject]):
    """A page of the items of a job, by number. Cursors are numbers."""


class RequestObject(BaseModel):
    """A request of an item, and its answer."""

    custom_id: str
    stage: str
    batch_id: str
    visit: int = Field(description="turns of the item in this stage, from 1")
    sample: int
    retry: int = Field(description="attempts before this one")
    body: dict[str, Any]
    status_code: int | None = Field(description="null: no answer yet, or none from an engine")
    response: dict[str, Any] | None
    error: dict[str, Any] | None
    seconds: float | None


class JudgementObject(BaseModel):
    """The outcome of a reward or a gate, or of a request that no engine has run."""

    index: int
    kind: str
    value: Any


class TurnObject(BaseModel):
    """What an item wanted at one time, and what it got."""

    life: int
    turn: int
    requests: list[RequestObject]
    judgements: list[JudgementObject]


class ReplyObject(BaseModel):
    """What a person or a CI has said to an item."""

    life: int
    turn: int
    kind: Literal["verdict", "resolve", "requeue"]
    body: dict[str, Any]
    created_at: int


class ItemDetail(ItemObject):
    """An item with all that has happened to it."""

    columns: dict[str, Any]
    turns: list[TurnObject]
    replies: list[ReplyObject]
    waits_for: dict[str, Any] | None = Field(description="the gate, and what the recipe says to whoever judges")
    result: Any
    error: dict[str, Any] | None
    started_at: float | None
    ended_at: float | None
