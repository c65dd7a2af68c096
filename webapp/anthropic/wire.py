"""The models of /v1/messages/batches, as the package `anthropic` has them."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from batchyard.statuses import Priority
from webapp.wire.fields import PRIORITY, ExpiresAfter, Id, Metadata, Repeatable, Steps, StrictBody, Window


class MessageRequest(StrictBody):
    custom_id: str = Field(strict=True)
    params: dict[str, Any] = Field(description="a body of /v1/messages; what is wrong with it is its result")


class MessageBatchOptions(Repeatable, StrictBody):
    """How a message batch is run; all of it is this project's, see POST /v1/batches."""

    completion_window: Window = "24h"
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None
    post_process: Steps = Field(default_factory=list, max_length=16)
    priority: Priority = Field("normal", description=PRIORITY)


class CreateMessageBatch(MessageBatchOptions):
    """The body of POST /v1/messages/batches. It is read as a stream, so keys may stand in any order."""

    requests: list[MessageRequest] = Field(min_length=1)


class ListMessageBatches(BaseModel):
    before_id: Id | None = Field(None, description="list the batches that were created after this one")
    after_id: Id | None = Field(None, description="the id of the last batch of the page before")
    limit: int = Field(20, ge=1, le=1000)


class MessageBatchRequestCounts(BaseModel):
    """The requests of a message batch: all are `processing` until it has ended, then none is."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(BaseModel):
    """A batch of /v1/messages. In `/v1/batches` its id begins with `batch_`."""

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchRequestCounts
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    cancel_initiated_at: datetime | None
    archived_at: datetime | None = Field(description="always null: results stay until their files are deleted")
    results_url: str | None = Field(description="null until the batch has ended")


class MessageBatchPage(BaseModel):
    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, data: list[MessageBatch], *, has_more: bool) -> Self:
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=data, first_id=first, last_id=last, has_more=has_more)


class MessageBatchDeleted(BaseModel):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


class MessageErrorDetail(BaseModel):
    type: str
    message: str
    details: dict[str, Any] | None = Field(None, exclude_if=lambda details: details is None)


class MessageError(BaseModel):
    """What every request that fails on these routes is answered with, and the error of an errored result."""

    type: Literal["error"] = "error"
    error: MessageErrorDetail
    request_id: str | None
