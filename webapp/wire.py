"""The objects that cross the wire, as OpenAI's Files and Batches define them, and what this project adds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from batchyard import durations
from batchyard.models import Endpoint
from tasks import steps

Short = Annotated[str, StringConstraints(max_length=512, strict=True)]
Metadata = Annotated[dict[Annotated[str, StringConstraints(max_length=64)], Short], Field(max_length=16)]


class ExpiresAfter(BaseModel):
    """When a file expires: `seconds` after `created_at`, between an hour and 30 days."""

    model_config = ConfigDict(extra="forbid")
    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2592000)


class CreateBatch(BaseModel):
    """The body of POST /v1/batches. Unknown parameters are refused: a misspelt one must not be lost in silence."""

    model_config = ConfigDict(extra="forbid")
    input_file_id: str = Field(strict=True)
    endpoint: Endpoint
    completion_window: str = Field(strict=True)
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None
    post_process: list[dict[str, Any]] = Field(default_factory=list, max_length=16)

    @field_validator("completion_window")
    @classmethod
    def _duration(cls, value: str) -> str:
        durations.seconds(value)
        return value

    @field_validator("post_process")
    @classmethod
    def _steps(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_step(entry) for entry in value]


def _step(entry: dict[str, Any]) -> dict[str, Any]:
    known = ", ".join(sorted(steps.REGISTRY))
    name = entry.get("step")
    if not isinstance(name, str) or name not in steps.REGISTRY:
        raise ValueError(f"no step {name!r}; there are: {known}")
    return steps.REGISTRY[name][0].model_validate(entry).model_dump()


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
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


class Extension(BaseModel):
    """What this project says of a batch beside OpenAI's fields. Rates and ETA are null until measured."""

    expired: int
    cancelled: int
    simulated: bool
    rows_per_second: float | None
    tokens_per_second: float | None
    eta_seconds: float | None
    input_sha256: str
    models: dict[str, str] = Field(description="engine of each model")
    post_process: list[dict[str, Any]]
    artifacts: list[ArtifactObject]


class BatchObject(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
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


class ModelObject(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    batchyard: dict[str, Any]


def list_object(data: list[Any], more: bool) -> dict[str, Any]:
    """A list page of wire objects."""
    items = [item.model_dump() for item in data]
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": more,
    }
