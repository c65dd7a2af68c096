"""The models of events, of /v1/batches/{id}/events and of /v1/audit."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from store import events
from webapp.wire.lists import ListPage, ListQuery


class Actor(BaseModel):
    """The API key with which something was done."""

    key_id: str = Field(description="`terminal`: a command on the server's machine")
    name: str = Field(description="its label at that time, or the end of its id")


class EventObject(BaseModel):
    """Something that happened to a batch, as its webhooks are sent it, or that a client did."""

    id: str
    object: Literal["event"] = "event"
    created_at: int
    type: events.Type | events.Action
    data: dict[str, Any] = Field(description="the `id` of what it is about, and more for types that are our own")
    by: Actor | None = Field(description="who did it; null: it happened")


EventPage = ListPage[EventObject]
ListEvents = ListQuery


class ListActions(ListQuery):
    limit: int = Field(50, ge=1, le=100)
