"""The request and response models: OpenAI's Files and Batches API, and this project's extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from batchyard import durations
from batchyard.statuses import AfterDeath, Endpoint, Priority, Status
from store.records import Sla
from tasks.scheduling.states import StateName
from tasks.steps import registry

Item = TypeVar("Item")


def _duration(text: str) -> str:
    durations.seconds(text)
    return text


def _step(entry: dict[str, Any]) -> dict[str, Any]:
    names = sorted(registry.STEPS.names())
    name = entry.get("step")
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"no step {name!r}; there are: {', '.join(names)}")
    return registry.STEPS.get(name).options.model_validate(entry).model_dump()


# The pattern is only for the OpenAPI document: `_duration` validates, with a better message.
Window = Annotated[
    str,
    Field(strict=True, examples=["24h"], json_schema_extra={"pattern": "^[1-9][0-9]{0,8}[smhd]$"}),
    AfterValidator(_duration),
]
Steps = list[Annotated[dict[str, Any], AfterValidator(_step)]]
Name = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Short = Annotated[str, StringConstraints(max_length=512, strict=True)]
OnInvalid = Literal["fail", "skip"]
ON_INVALID = "a line that cannot be run fails the batch before anything runs, or is skipped and gets an error line"
PRIORITY = "the order among the project's own batches"
Metadata = Annotated[dict[Annotated[str, StringConstraints(max_length=64)], Short], Field(max_length=16)]


def from_json_text(value: Any) -> Any:
    """Parse a form field's JSON text. Any other value, and text that is not JSON, is returned unchanged."""
    if isinstance(value, str):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def declare_file(*, required: bool) -> Callable[[dict[str, Any]], None]:
    """Return a hook that adds the field `file` to a form's schema. The form parser removes it before validation."""

    def declare(schema: dict[str, Any]) -> None:
        schema["properties"]["file"] = {"type": "string", "format": "binary"}
        if required:
            schema.setdefault("required", []).append("file")

    return declare


class ExpiresAfter(BaseModel):
    """When a file expires: `seconds` after `created_at`, between an hour and 30 days."""

    model_config = ConfigDict(extra="forbid")
    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2592000)


class BatchOptions(BaseModel):
    """How a batch is run. Unknown parameters are refused: a misspelt one must not be lost in silence."""

    model_config = ConfigDict(extra="forbid")
    endpoint: Endpoint
    completion_window: Window
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None
    post_process: Steps = Field(default_factory=list, max_length=16)
    on_invalid: OnInvalid = Field("fail", description=ON_INVALID)


class ScheduledBatch(BatchOptions):
    """How the batches of a schedule are run."""

    priority: Priority = Field("normal", description=PRIORITY)


class InputFile(BaseModel):
    input_file_id: str = Field(strict=True, max_length=64)


class Repeatable(BaseModel):
    idempotency_key: str | None = Field(
        None, strict=True, min_length=1, max_length=255, description="as the header Idempotency-Key"
    )


# Pydantic puts the last base's fields first: a missing file is reported before a missing endpoint.
class CreateBatch(Repeatable, BatchOptions, InputFile):
    """The body of POST /v1/batches."""

    priority: Priority = Field("normal", description=PRIORITY)


class RetryBatch(Repeatable):
    """The body of POST /v1/batches/{id}/retry: what is left out is as it was in the batch that is repeated."""

    model_config = ConfigDict(extra="forbid")
    completion_window: Window | None = None
    metadata: Metadata | None = None


class ChangeBatch(BaseModel):
    """The body of POST /v1/batches/{id}: what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")
    completion_window: Window | None = Field(None, description="counted from the batch's creation")
    priority: Priority | None = Field(None, description=PRIORITY)
    name: Annotated[Short, StringConstraints(min_length=1)] | None = Field(
        None, description="what people call it, kept in its metadata; null: its input file's name"
    )
    description: Short | None = Field(None, description="kept in its metadata; null removes it")

    def metadata(self) -> dict[str, str | None]:
        """Return the entries of the metadata that are to change."""
        return {name: getattr(self, name) or None for name in ("name", "description") if name in self.model_fields_set}


UploadPurpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: UploadPurpose | Literal["batch_output"]
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class BatchError(BaseModel):
    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


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


class ArtifactObject(BaseModel):
    """A file a batch has produced, under its name in that batch."""

    name: str
    file_id: str
    sha256: str
    bytes: int
    lines: int | None


class Shared(BaseModel):
    """Of a batch's requests and usage, those whose answer was another's. What engines computed is the rest."""

    requests: int
    input_tokens: int
    output_tokens: int


class Cost(BaseModel):
    """What answers have cost, by the tariffs of models.toml at the time of the batch. Shared answers cost nothing."""

    amount: str = Field(description="a decimal number, exact", examples=["0.00120405"])
    currency: str
    unpriced_requests: int = Field(description="requests to models without a tariff, whose cost nobody knows")


class Percentiles(BaseModel):
    """How long requests were in an engine, in seconds, to 2 %. Half of them took at most `p50`."""

    requests: int = Field(description="how many were measured: those that an engine has answered")
    p50: float
    p95: float
    p99: float


class ModelLatency(Percentiles):
    """The percentiles of one model's requests."""

    classes: dict[str, Percentiles] = Field(
        description="by class: `prefill`, whose work is mostly reading, and `decode`, mostly writing"
    )


class Latency(Percentiles):
    """The percentiles of all requests of a batch."""

    models: dict[str, ModelLatency]


class Held(BaseModel):
    """Why a batch does not move, though it has not ended: this is tried again."""

    reason: str
    model: str | None = Field(
        description="the model that cannot run: its engine cannot start, or it is not served any more; null: "
        "validation or finishing fails"
    )
    since: int | None = Field(description="since when the model cannot run")
    attempts: int = Field(description="in a row, without those in which a part of the deployment was away")
    retry_at: int | None = Field(
        description="when it is tried next, at the earliest; null: as soon as the model is served again"
    )


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


def engine_deaths(of_batches: Iterable[dict[str, Any] | None]) -> dict[str, Any]:
    """Return the fields `engine_deaths` and `last_engine_death`, of what the batches' records say."""
    entries = [(model, entry) for deaths in of_batches for model, entry in (deaths or {}).items()]
    last = max(({"model": model, **entry["last"]} for model, entry in entries), key=lambda one: one["at"], default=None)
    return {
        "engine_deaths": sum(entry["deaths"] for _, entry in entries),
        "last_engine_death": None if last is None else EngineDeath.model_validate(last),
    }


class State(BaseModel):
    """What a batch does now."""

    name: StateName = Field(
        description="`waiting` for its turn, `starting_engine` before its first answer, `running`, `held` until what "
        "keeps it is mended, `paused` until somebody resumes it; before that `validating`, after it `finishing`"
    )
    behind: int | None = Field(
        description="of a waiting batch: how many batches, of all projects, run or are due before it; null: nobody "
        "has counted them yet"
    )
    behind_ids: list[str] = Field(description="the first of those of this project")
    running: int | None = Field(description="of those, how many run; the others wait, and are due before it")
    model: str | None = Field(description="the model whose engines they have; null: all slots of the deployment")
    next_id: str | None = Field(description="the batch that runs next, maybe this one; null: another project's")
    infeasible: bool = Field(description="it cannot end within its window even alone, so it runs after all that can")
    usual_seconds: float | None = Field(description="how long the engine usually takes to start; null: not measured")
    reason: str | None = Field(description="why it is held")


class Extension(BaseModel):
    """What this project says of a batch beside OpenAI's fields. Rates and ETA are null until measured."""

    name: str = Field(description="what people call it: `name` of its metadata, or its input file's name")
    created_by: str | None = Field(description="id of the key that created it; null: a schedule, or a job")
    expired: int = Field(description="requests that were never run because the window had passed")
    cancelled: int = Field(description="requests that were never run because the batch was cancelled")
    shared: Shared = Field(description="what no engine computed, because another request's answer served")
    cost: Cost | None = Field(description="so far; null: no model with a tariff has answered yet")
    simulated: bool
    rows_per_second: float | None
    tokens_per_second: float | None
    eta_seconds: float | None = Field(description="until its files are there, with all that runs before it")
    eta_earliest_seconds: float | None
    eta_latest_seconds: float | None
    latency: Latency | None = Field(description="null before the first answer of an engine")
    state: State | None = Field(description="what it does now; null once it has ended")
    held: Held | None = Field(description="why it does not move; null: it does, or it waits for its turn")
    engine_deaths: int = Field(description="how often an engine has died that had requests of it")
    last_engine_death: EngineDeath | None = Field(description="the last of these; null: there was none")
    paused_at: int | None = Field(description="since when it waits until somebody resumes it; null: it does not")
    paused_by: str | None = Field(description="what people call the key that has paused it")
    priority: Priority = Field(description=PRIORITY)
    sla: Sla = Field(description="whether it will be done in time, and when it has ended, whether it was")
    due_at: int = Field(description="when it is due, by its window or its project's tier")
    input_sha256: str | None = Field(description="null: there was no such file")
    models: dict[str, str] = Field(description="engine of each model")
    post_process: list[dict[str, Any]]
    on_invalid: OnInvalid = Field(description="what a line that cannot be run does")
    artifacts: list[ArtifactObject]
    retry_of: str | None = Field(description="the batch whose unanswered requests this one repeats")
    retries: list[str] = Field(description="the batches that repeat this one's unanswered requests")
    schedule_id: str | None = Field(description="the schedule that has made it")
    job_id: str | None = Field(description="the job of which it is a stage; it alone cancels and retries it")
    stage: str | None = Field(description="the name of that stage")


class BatchObject(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: Usage
    metadata: dict[str, str] | None
    batchyard: Extension


class ListPage(BaseModel, Generic[Item]):
    """A page of a list; `after=last_id` asks for the next one."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, data: list[Item], *, has_more: bool) -> Self:
        ids = [getattr(item, "id", None) for item in data]
        return cls(data=data, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=has_more)


class FilePage(ListPage[FileObject]):
    pass


class BatchPage(ListPage[BatchObject]):
    pass


class SegmentObject(BaseModel):
    """A run of a batch's requests that is executed as one task."""

    model_config = ConfigDict(from_attributes=True)
    number: int
    model: str
    state: Literal["pending", "dispatched", "running", "done"]
    requests: int
    answered: int
    attempts: int = Field(description="that failed since its last answer")
    error: str | None = Field(description="why the last attempt failed")
    engine: dict[str, Any] | None = Field(description="what answered it, once it is done")


class SegmentPage(BaseModel):
    """A page of segments; `after=last_id` asks for the next one."""

    object: Literal["list"] = "list"
    data: list[SegmentObject]
    last_id: int | None
    has_more: bool


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(BaseModel):
    """What every request that fails is answered with."""

    error: ErrorDetail
