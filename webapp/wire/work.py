"""What batches and jobs say alike: errors, tokens, artifacts, cost and deaths of engines."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from batchyard.statuses import AfterDeath
from store.records import Sla
from webapp.wire.lists import QueryParams


class BatchError(BaseModel):
    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class InputTokensDetails(BaseModel):
    cached_tokens: int


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Flaws(BaseModel):
    """How many of the answers have a flaw. An answer may have several."""

    cut_off: int = Field(0, description="answers that ended at a limit of tokens")
    empty: int = Field(0, description="answers that have no text")
    invalid: int = Field(0, description="answers that lack the form that their request asks for, such as a schema's")
    looped: int = Field(0, description="answers that a guard ended because they repeated themselves")


class WorkObject(BaseModel):
    """The fields of OpenAI's batch object that a job has, too."""

    id: str
    object: str
    status: str
    errors: BatchErrors | None
    completion_window: str
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    usage: Usage
    metadata: dict[str, str] | None


class ArtifactObject(BaseModel):
    """A file a batch has produced, under its name in that batch."""

    name: str
    file_id: str
    sha256: str
    bytes: int
    lines: int | None


class Cost(BaseModel):
    """What answers have cost, by the tariffs of models.toml at the time of the batch. Shared answers cost nothing."""

    amount: str = Field(description="a decimal number, exact", examples=["0.00120405"])
    currency: str
    unpriced_requests: int = Field(description="requests to models without a tariff, whose cost nobody knows")


class EngineDeath(BaseModel):
    """The last death of an engine that had requests of a batch or a job."""

    at: int
    model: str
    replica: int
    reason: str
    requests: int = Field(description="how many of one run were in it")
    next: AfterDeath = Field(
        description="`starts_again`: the engine, with nothing to repeat; its requests `runs_again`, or `runs_alone` "
        "with nothing else in the engine, in halves; `request_fails`, the only one that was in it; `ends_run`, "
        "which is tried again"
    )


class WorkExtension(Flaws):
    """Fields of batches and jobs beside OpenAI's. ETAs are null until measured."""

    created_by: str | None = Field(description="id of the key that created it; null: a schedule, or a job")
    simulated: bool
    models: dict[str, str] = Field(description="engine of each model")
    eta_seconds: float | None = Field(description="until its files are there, with all that runs before it")
    eta_earliest_seconds: float | None
    eta_latest_seconds: float | None
    sla: Sla = Field(description="whether it will be done in time, and when it has ended, whether it was")
    due_at: int = Field(description="when it is due, by its window or its project's tier")
    paused_at: int | None = Field(description="since when it waits until somebody resumes it; null: it does not")
    paused_by: str | None = Field(description="what people call the key that has paused it")
    engine_deaths: int = Field(description="how often an engine has died that had requests of it")
    last_engine_death: EngineDeath | None = Field(description="the last of these; null: there was none")
    post_process: list[dict[str, Any]] = Field(description="with the outcome of each step once it has run")
    artifacts: list[ArtifactObject]
    callback_url: str | None = Field(description="gets the event of its end; null: none")
    schedule_id: str | None = Field(description="the schedule that has made it")


class ListResults(QueryParams):
    after: int = Field(0, ge=0, le=2**53, description="how many lines the caller has already")
    limit: int | None = Field(None, ge=1, le=2**53, description="most lines to answer with")
