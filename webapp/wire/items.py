"""The models of /v1/jobs/{id}/items."""

from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from batchyard.statuses import ItemState
from webapp.wire.fields import StrictBody
from webapp.wire.lists import ListPage, QueryParams


class Verdict(StrictBody):
    """What a person or a CI says to an item that waits for it."""

    gate: str = Field(strict=True, min_length=1, max_length=128, description="the one that the item waits for")
    passed: bool = Field(strict=True)
    turn: int | None = Field(None, ge=0, description="the item's turn that it is about; null: the one it waits in")
    category: str | None = Field(None, strict=True, max_length=128, description="why it did not pass, in a word")
    message: str | None = Field(None, strict=True, max_length=65536, description="why, as a model is told")
    by: str | None = Field(None, strict=True, max_length=128)


class Requeue(StrictBody):
    """An item is to begin again."""

    hint: str | None = Field(None, strict=True, max_length=65536, description="what its prompts say besides")


class ItemReply(StrictBody):
    """The body of POST /v1/jobs/{id}/items/{number}: one of `text`, `verdict` and `requeue`."""

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


class ItemObject(BaseModel):
    """An item of a job in a list."""

    number: int = Field(description="row of the input, from 1")
    custom_id: str
    state: ItemState
    life: int = Field(description="1, and one more each time that it was put back")
    turn: int | None = Field(description="its turns; null: it has not ended, and waits for no verdict")
    stage: str | None = Field(description="the last in which it has a request; null: in none, or it has ended")
    reason: str | None = Field(description="error code of one that is failed or stuck; the gate that one waits for")
    question: str | None = Field(
        description="the last message that its row makes, cut; null: its recipe asks otherwise"
    )
    answer: str | None = Field(description="the text of its result, cut; null: none yet")
    scores: list[float] = Field(description="of its samples; empty: none has a score")


class ItemPage(ListPage[ItemObject]):
    """A page of the items of a job, by number. Cursors are numbers."""


class RequestObject(BaseModel):
    """A request of an item, and its answer."""

    custom_id: str
    stage: str
    batch_id: str
    visit: int = Field(description="turns of the item in this stage, from 1")
    sample: int = Field(description="asks of the item in this turn, from 1")
    retry: int = Field(description="attempts before this one")
    body: dict[str, Any]
    status_code: int | None = Field(description="null: no answer yet, or none from an engine")
    response: dict[str, Any] | None
    error: dict[str, Any] | None
    seconds: float | None


class JudgementObject(BaseModel):
    """The outcome of a reward or a gate, or of a request that no engine has run."""

    index: int = Field(description="outcomes of the item in this turn, from 1")
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


class ListItems(QueryParams):
    state: ItemState | None = None
    custom_id: str | None = Field(None, min_length=1, max_length=256)
    after: int | None = Field(None, ge=0, le=2**53, description="the number of the last item of the page before")
    limit: int = Field(20, ge=1, le=100)
