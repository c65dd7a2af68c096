"""The models of /v1/batches: OpenAI's Batch API, and this project's extensions."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, StringConstraints

from batchyard.endpoints.guards import Guard
from batchyard.endpoints.path import EndpointPath
from batchyard.latency import Latency
from batchyard.statuses import Priority, Status
from tasks.scheduling.states import StateName
from tasks.steps.verify import SampleOptions
from webapp.wire import fields
from webapp.wire.lists import Deleted, ListPage, ListQuery, QueryParams
from webapp.wire.work import BatchError, Cost, ListResults, WorkExtension, WorkObject


class ScheduledBatch(fields.StrictBody):
    """How a batch is run, and the batches of a schedule."""

    endpoint: EndpointPath
    completion_window: fields.Window
    metadata: fields.Metadata | None = None
    output_expires_after: fields.ExpiresAfter | None = None
    callback_url: fields.CallbackUrl | None = Field(None, description=fields.CALLBACK_URL)
    post_process: fields.Steps = Field(default_factory=list, max_length=16)
    on_invalid: fields.OnInvalid = Field("fail", description=fields.ON_INVALID)
    priority: Priority = Field("normal", description=fields.PRIORITY)
    stop_when: fields.StopWhen | None = Field(None, description=fields.STOP_WHEN)
    guard: Guard | None = Field(None, description=fields.GUARD)


class Planned(BaseModel):
    plan: fields.PlanRequest | None = Field(None, description=fields.PLAN)


def _no_file(value: Any) -> Any:
    if value is not None:
        raise ValueError("the batch has another input already; send one of the two")
    return value


class InputFile(BaseModel):
    input_file_id: str = Field(strict=True, max_length=64)


# Pydantic puts the last base's fields first: a missing file is reported before a missing endpoint.
class BatchOfFile(fields.Repeatable, Planned, ScheduledBatch, InputFile):
    """A batch of an uploaded file."""

    requests: None = Field(None, exclude=True)
    open: Literal[False] = Field(False, exclude=True)


class BatchOfUrl(fields.Repeatable, Planned, ScheduledBatch):
    """A batch of the objects at a URL of a bucket that the operator allows, joined to one file."""

    input_url: str = Field(strict=True, min_length=1, max_length=1024, examples=["s3://bucket/in/2026-11-26/"])
    input_file_id: Annotated[None, BeforeValidator(_no_file)] = None
    requests: None = None
    open: Literal[False] = False


def _declare_requests(schema: dict[str, Any]) -> None:
    """Add the list of requests to a body's schema. They are stored before the rest is validated."""
    requests = {"type": "array", "items": {"type": "object"}, "minItems": 1}
    description = "as lines of a file; without `method` and `url`, a request has those of the batch"
    schema["properties"]["requests"] = requests | {"description": description}
    schema["required"].append("requests")


class BatchOfRequests(fields.Repeatable, Planned, ScheduledBatch):
    """A batch of requests that stand in the body itself."""

    model_config = ConfigDict(json_schema_extra=_declare_requests)
    input_file_id: Annotated[None, BeforeValidator(_no_file)] = None
    open: Literal[False] = False


class OpenBatch(fields.Repeatable, ScheduledBatch):
    """A batch that gets its requests while it runs, by POST /v1/batches/{id}/requests, until it is closed."""

    input_file_id: None = None
    requests: None = None
    open: Literal[True]
    on_invalid: Literal["fail"] = Field("fail", description="requests that cannot be run are refused as they come")


class AppendedRequests(BaseModel):
    """Requests that were added to an open batch."""

    model_config = ConfigDict(from_attributes=True)
    id: str
    object: Literal["batch.requests"] = "batch.requests"
    batch_id: str
    requests: int = Field(description="how many they are")
    first_line: int = Field(description="the line of the first of them in the batch's input file")
    bytes: int
    created_at: int


class CreateBatch(RootModel[BatchOfFile | BatchOfUrl | BatchOfRequests | OpenBatch]):
    """The body of POST /v1/batches."""


class VerifyBatch(SampleOptions, fields.Repeatable, fields.StrictBody):
    """The body of POST /v1/batches/{id}/verify."""

    completion_window: fields.Window | None = None
    model: str | None = Field(None, strict=True, max_length=256, description="null: the models that answered")
    logprobs: bool = Field(False, strict=True, description="ask for log-probabilities, too, of chat completions")


class RetryBatch(fields.Repeatable, fields.StrictBody):
    """The body of POST /v1/batches/{id}/retry: what is left out is as it was in the batch that is repeated."""

    completion_window: fields.Window | None = None
    metadata: fields.Metadata | None = None
    errors: Literal["all", "passing"] = Field(
        "all", description="`passing` leaves out requests that would fail again, such as those an engine has refused"
    )
    fixed_file_id: str | None = Field(
        None,
        strict=True,
        max_length=64,
        description="a file of corrected requests; each replaces the one with its custom_id, or that of its `line`",
    )


class ChangeBatch(fields.StrictBody):
    """The body of POST /v1/batches/{id}: what is left out stays as it is."""

    completion_window: fields.Window | None = Field(None, description="counted from the batch's creation")
    priority: Priority | None = Field(None, description=fields.PRIORITY)
    name: Annotated[fields.Short, StringConstraints(min_length=1)] | None = Field(
        None, description="what people call it, kept in its metadata; null: its input file's name"
    )
    description: fields.Short | None = Field(None, description="kept in its metadata; null removes it")

    def metadata(self) -> dict[str, str | None]:
        """Return the entries of the metadata that are to change."""
        return {name: getattr(self, name) or None for name in ("name", "description") if name in self.model_fields_set}


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class Shared(BaseModel):
    """Of a batch's requests and usage, those whose answer was another's. What engines computed is the rest."""

    requests: int
    input_tokens: int
    output_tokens: int


class PlanState(BaseModel):
    """The state of a plan."""

    rows: int = Field(description="requested size of the sample")
    sampled: bool = Field(description="true once the whole sample is answered; the rest runs after a resume")


class ShareRange(BaseModel):
    """A share of the sample, and the range of the share of all requests."""

    share: float
    low: float
    high: float


class SumRange(BaseModel):
    """An estimated sum over all requests, and its range."""

    sum: float
    low: float
    high: float


class SampleAnswer(BaseModel):
    """An answer of the sample, shortened."""

    custom_id: str
    text: str | None
    error: str | None
    output_tokens: int
    seconds: float = Field(description="in the engine; 0 if unknown")


class PlanSample(BaseModel):
    """Answers of a sample."""

    answered: int = Field(description="requests of the sample answered so far")
    errors: dict[str, int] = Field(description="requests that failed, by the code of their error")
    odd: dict[str, list[SampleAnswer]] = Field(description="at most ten of each kind of flaw, and the three slowest")
    answers: list[SampleAnswer] = Field(description="ten of the sample, from short to long prompts")


class PlanForecast(BaseModel):
    """Estimates for all requests. Each range holds with probability `confidence`."""

    confidence: float
    shares: dict[str, ShareRange] = Field(
        description="requests that failed, and answers with each flaw; `wrong` is of those with an expected answer"
    )
    tokens: dict[str, SumRange]
    cost: dict[str, str] | None = Field(description="currency, sum, low, high; null: a model has no tariff")
    hosted: dict[str, dict[str, str]] = Field(description="the cost of all tokens at the services of models.toml")
    seconds: SumRange | None = Field(description="for the rest, if it were resumed now; null: unknown")


class PlanSummary(BaseModel):
    """The forecast for all requests, from a sample."""

    models: list[str]
    requests: int = Field(description="of the batch; of a job, its items")
    sampled: bool
    sample: PlanSample
    forecast: PlanForecast


class PlanReport(PlanSummary):
    """The forecast for all requests of a batch, from its sample."""

    object: Literal["batch.plan"] = "batch.plan"
    batch_id: str


class Held(BaseModel):
    """Why a batch does not move, though it has not ended: this is tried again."""

    reason: str
    model: str | None = Field(
        description="the model that cannot run: its engine cannot start, or it is not served any more; null: "
        "validation or finishing fails, or a part of the deployment is away or full"
    )
    since: int | None = Field(description="since when the model cannot run")
    attempts: int = Field(description="in a row, without those in which a part of the deployment was away")
    retry_at: int | None = Field(
        description="when it is tried next, at the earliest; null: as soon as the model is served again"
    )


class Verification(BaseModel):
    """What a sample of a batch's requests, asked again, has shown of its answers."""

    batch_id: str = Field(description="the batch that asked again; `verify-summary.json` of it has each difference")
    at: int
    asked: int
    equal: int
    different: int
    failed: int = Field(description="without an answer this time")
    low: float = Field(description="the least share of all answers that would differ, with 95 % confidence")
    high: float
    changes: int = Field(description="settings, weights and versions that were not as the first time")


class State(BaseModel):
    """What a batch does now."""

    name: StateName = Field(
        description="`waiting` for its turn, `starting_engine` before its first answer, `running`, `open` until it "
        "gets more requests, `held` until what keeps it is mended, `paused` until somebody resumes it; before that "
        "`validating`, after it `finishing`"
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


class Extension(WorkExtension):
    """What this project says of a batch beside OpenAI's fields. Rates and ETA are null until measured."""

    name: str = Field(description="what people call it: `name` of its metadata, or its input file's name")
    expired: int = Field(description="requests that were never run because the window had passed")
    cancelled: int = Field(description="requests that were never run because the batch was cancelled")
    shared: Shared = Field(description="what no engine computed, because another request's answer served")
    cost: Cost | None = Field(description="so far; null: no model with a tariff has answered yet")
    rows_per_second: float | None
    tokens_per_second: float | None
    latency: Latency | None = Field(description="null before the first answer of an engine")
    state: State | None = Field(description="what it does now; null once it has ended")
    held: Held | None = Field(description="why it does not move; null: it does, or it waits for its turn")
    priority: Priority = Field(description=fields.PRIORITY)
    input_sha256: str | None = Field(description="null: there was no such file")
    live_shares: dict[str, float] = Field(
        description="share of the time of a model's engines, 0 to 1, that live requests had in the last one to two "
        "minutes, by model; the ETA knows it, because speeds are measured beside them. Models without any are left out"
    )
    on_invalid: fields.OnInvalid = Field(description="what a line that cannot be run does")
    warnings: list[BatchError] = Field(
        description="what is most likely a mistake, though it stops no request: at first what is in the first of them"
    )
    open: bool = Field(description="whether it may still get requests")
    stop_when: fields.StopWhen | None = Field(description="limits that have not paused it yet; null: none")
    guard: Guard | None = Field(description="beside that of its models; null: none")
    plan: PlanState | None = Field(description="null: it was created without a plan")
    retry_of: str | None = Field(description="the batch whose unanswered requests this one repeats")
    retries: list[str] = Field(description="the batches that repeat this one's unanswered requests")
    verification: Verification | None = Field(description="the newest one; null: none")
    job_id: str | None = Field(description="the job of which it is a stage; it alone cancels and retries it")
    stage: str | None = Field(description="the name of that stage")


class BatchObject(WorkObject):
    object: Literal["batch"] = "batch"
    status: Status
    endpoint: str
    model: str | None
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    request_counts: RequestCounts
    batchyard: Extension


class BatchDeleted(Deleted):
    object: Literal["batch"] = "batch"


BatchPage = ListPage[BatchObject]


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


class ListBatches(ListQuery):
    status: Status | None = Field(None, description="only batches with this status")


class ListBatchResults(ListResults):
    seconds: bool = Field(False, description="add to each line `batchyard.seconds`, the request's time in its engine")


class ListSegments(QueryParams):
    after: int | None = Field(None, ge=0, le=2**53, description="the number of the last segment of the page before")
    limit: int = Field(100, ge=1, le=100)
