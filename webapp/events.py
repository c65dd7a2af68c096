"""/v1/batches/{id}/events: the events of a batch, as its webhooks receive them."""

from __future__ import annotations

from typing import Any, Literal

from flask import Blueprint
from pydantic import BaseModel, Field

from store import batches, events
from tasks.webhooks import delivery
from webapp import wire
from webapp.document import operation
from webapp.requests import caller, current_context, query

routes = Blueprint("events", __name__)


class ListEvents(BaseModel):
    after: str | None = Field(None, description="the id of the last event of the page before")
    limit: int = Field(20, ge=1, le=100)


class EventObject(BaseModel):
    """Something that happened to a batch: the body of what its webhooks are sent."""

    id: str
    object: Literal["event"]
    created_at: int
    type: events.Type
    data: dict[str, Any] = Field(description="the batch's `id`, and more for types that are our own")


class EventPage(wire.Page[EventObject]):
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
    data = [EventObject.model_validate(delivery.payload(event)) for event in records]
    return EventPage.of(data, has_more=has_more)
