"""The models of /v1/models, /v1/queue and /v1/demand: what is served, what waits for it, and what that needs."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from batchyard.endpoints.base import AnswerForm
from batchyard.statuses import AfterDeath
from tasks.execution.engine_status import EngineStatus
from tasks.live.traffic import LiveTraffic
from webapp.wire.fields import StrictBody
from webapp.wire.lists import Deleted, ListPage


class ListModels(BaseModel):
    engines: bool = Field(False, description="say of each model what its engines do, too")


class EngineFailureObject(BaseModel):
    """The last time that an engine of a model died or did not start, of which none has answered since."""

    model_config = ConfigDict(from_attributes=True)
    at: int
    reason: str
    requests: int = Field(description="how many of batches were in it")
    deaths: int = Field(description="of its engines since one has answered; 0: it did not start")
    next: AfterDeath = Field(description="what happened then, as in `last_engine_death` of a batch")


class ModelExtension(BaseModel):
    """What this project says of a model beside OpenAI's fields."""

    engine: str
    endpoints: list[str]
    simulated: bool
    config_sha256: str
    answer_forms: list[AnswerForm] = Field(
        description="that its chats can be held to: a schema by `response_format`, the others by `structured_outputs`"
    )
    logprobs: bool = Field(description="its chats are known to have log-probabilities of their tokens")
    state: Literal["idle", "busy", "starting", "on_hold", "no_engine"] | None = Field(
        description="of its engines, as they were seen last; `on_hold`: batches wait because it cannot run; null: "
        "Redis is away, or `engines` was not set; this and the following change while engines work"
    )
    in_flight: int | None = Field(description="requests in its engines")
    held: str | None = Field(description="why batches wait for it")
    last_failure: EngineFailureObject | None = Field(description="null: an engine has answered since the last one")


class ModelObject(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    shutdown_date: str | None = None
    parent: str | None = Field(None, description="of an adapter: its base, whose engine answers; as vLLM has it")
    batchyard: ModelExtension


_ENTRY = [{"engine": "openai", "engine_args": {"endpoints": [{"url": "http://gpu1:8000/v1"}]}}]


class ChangeModel(StrictBody):
    """The body of PATCH /v1/models/{id}."""

    entry: dict[str, Any] | None = Field(
        description="keys of the model's entry in models.toml, of which null removes one; null in place of all undoes "
        "every change of the model, and its removal",
        examples=_ENTRY,
    )


class AddModel(StrictBody):
    """The body of POST /v1/models."""

    id: str = Field(description="the model's name")
    entry: dict[str, Any] = Field(description="as in models.toml", examples=_ENTRY)


class ModelChanged(ModelObject):
    warnings: list[str] = Field(
        description="findings of `batchyard doctor`, none of which keeps the model from running"
    )


class ModelRemoved(Deleted):
    object: Literal["model"] = "model"


class ModelsReloaded(BaseModel):
    """What a reload of models.toml has changed, by names of models."""

    object: Literal["models.reload"] = "models.reload"
    added: list[str]
    changed: list[str]
    removed: list[str]
    not_used: list[str] = Field(description="in models.toml, where changes made since take the place of their entries")


ModelPage = ListPage[ModelObject]


class ModelQueueObject(BaseModel):
    """One model's segments and requests that are not done; rates are over the last minute, null until measured."""

    model: str
    pending_segments: int
    running_segments: int
    waiting_requests: int
    oldest_seconds: float | None
    rows_per_second: float | None
    tokens_per_second: float | None
    held: str | None = Field(
        description="why its batches wait: its engine cannot be started, or it is not served any more; null: nothing "
        "is known against it"
    )


def _without_defaults(schema: dict[str, Any]) -> None:
    """Say that an answer has each field."""
    schema["required"] = list(schema["properties"])
    for entry in schema["properties"].values():
        entry.pop("default", None)


class EngineObject(EngineStatus):
    """A resident engine, as it was seen last."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)


class QueueObject(BaseModel):
    """What has not ended: batches by status and by SLA state, segments by model; and the engines that are up.

    An admin key sees that of all projects, any other key its own project's.
    """

    object: Literal["queue"] = "queue"
    batches: dict[str, int]
    sla: dict[str, int]
    paused: int = Field(description="batches that wait until somebody resumes them")
    next_deadline_seconds: float | None
    models: list[ModelQueueObject]
    messages: dict[str, int] | None = Field(
        description="waiting for a worker, by Celery queue; null: Redis is away, or no admin key"
    )
    engines: list[EngineObject] | None = Field(description="null: Redis is away, or no admin key")
    live: list[LiveTraffic] | None = Field(description="live requests of all projects, by model; null: Redis is away")


class ModelDemandObject(BaseModel):
    """The replicas of one model. Null: nobody knows, because the model was never measured or no worker runs."""

    model: str
    replicas_needed: int | None = Field(description="the least that keep the deadlines of the queue")
    replicas_running: int = Field(description="as they were seen last")
    replicas: int = Field(description="the most that models.toml allows")


class DemandObject(BaseModel):
    """How many replicas of each model the queue needs to keep its deadlines."""

    object: Literal["demand"] = "demand"
    models: list[ModelDemandObject]
