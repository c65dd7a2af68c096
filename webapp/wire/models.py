"""The models of /v1/models."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from batchyard.endpoints.base import AnswerForm
from batchyard.statuses import AfterDeath
from webapp.wire.lists import ListPage


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


ModelPage = ListPage[ModelObject]
