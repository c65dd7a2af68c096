"""The status of a resident engine: what its actor says, what is published, and what /v1/queue answers."""

from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class LiveAddress(NamedTuple):
    """Where an engine's actor answers live requests: the base URL, and the token to send."""

    url: str
    token: str


EngineActivity = Literal["starting", "busy", "idle"]


class EngineStatus(BaseModel):
    """A resident engine, as it was seen last."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    name: str
    model: str
    state: EngineActivity
    answered: int = 0
    in_flight: int = 0
    idle_seconds: float = 0.0
    seen_at: float
    endpoints: list[dict[str, Any]] = Field([], description="servers elsewhere that it asks, with their health")
    preemptions: int | None = Field(
        None,
        description="how often it took the cache of a running request and computed it again; null: it does not count",
    )
    started_at: float | None = Field(None, description="since when it is up; null: nobody has heard from it yet")
    start_seconds: float | None = Field(None, description="how long its start took")
    capacity: int | None = Field(None, description="requests that it runs at once")
    memory_bytes: int | None = Field(None, description="resident memory of its processes")
    peak_memory_bytes: int | None = Field(None, description="the most of that that was seen")
    peak_gpu_memory_bytes: int | None = Field(None, description="the most that its GPUs were seen to hold")
    gpus: float = 0.0
    gpu_ids: list[str] = Field([], description="those of its node that it has")
    live_answered: int = Field(0, description="live requests that have entered it")
    live_in_flight: int = Field(0, description="live requests that it runs")
    live_waiting: int = Field(0, description="live requests that wait to enter it")
    batch_limit: int | None = Field(None, description="requests of batches that it may hold now, beside live ones")
    redone_requests: int = Field(
        0, description="requests of batches that have lost their place to a live one, and ran again"
    )
    redone_input_tokens: int = Field(0, description="tokens of their prompts that were computed before that")
    redone_output_tokens: int = Field(0, description="tokens that were generated for them before that")
    cache_use: float | None = Field(None, description="share of its KV cache that requests have; null: it does not say")
    prefix_tokens: int | None = Field(None, description="tokens of prompts that it has looked for in its prefix cache")
    prefix_hits: int | None = Field(None, description="those of them that were there")


class ResidentStatus(EngineStatus):
    """The status, and the process by which others on its machine see that the engine is gone."""

    process: dict[str, Any] = Field({}, description="see inference.residents.process.identity")
