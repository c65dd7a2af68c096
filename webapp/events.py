"""/v1/batches/{id}/events: what has happened to a batch, and who did what. /v1/audit: who did what to anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from flask import Blueprint
from pydantic import BaseModel, Field

from store import batches, events
from store.records import Event
from tasks.webhooks import delivery
from webapp import wire
from webapp.document import operation
from webapp.requests import caller, current_context, query

routes = Blueprint("events", __name__)


class ListEvents(BaseModel):
    after: str | None = Field(None, description="the id of the last event of the page before")
    limit: int = Field(20, ge=1, le=100)


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


class EventPage(wire.ListPage[EventObject]):
    pass


@routes.get("/v1/batches/<batch_id>/events")
@operation(EventPage, query=ListEvents, refusals=(404,))
def list_(batch_id: str) -> EventPage:
    """List what has happened to a batch, oldest first."""
    owner = caller()
    params = query(ListEvents)
    with current_context().database.read() as session:
        batch = batches.get(session, owner.project_id, batch_id)
        records, has_more = events.page(session, batch, after=params.after, limit=params.limit)
    return to_wire(records, has_more=has_more)


def to_wire(records: Sequence[Event], *, has_more: bool) -> EventPage:
    """Return a page of events as they cross the wire."""
    data = [
        EventObject(
            **delivery.payload(event),
            by=Actor(key_id=event.key_id, name=event.key_name or event.key_id) if event.key_id else None,
        )
        for event in records
    ]
    return EventPage.of(data, has_more=has_more)


class ListActions(BaseModel):
    after: str | None = Field(None, description="the id of the last one of the page before")
    limit: int = Field(50, ge=1, le=100)


@routes.get("/v1/audit")
@operation(EventPage, query=ListActions)
def audit() -> EventPage:
    """List who did what and when, newest first: in the project, or for an admin key in all projects."""
    owner = caller()
    params = query(ListActions)
    with current_context().database.read() as session:
        records, has_more = events.actions(
            session, None if owner.admin else owner.project_id, after=params.after, limit=params.limit
        )
    return to_wire(records, has_more=has_more)
