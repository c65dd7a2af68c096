"""/v1/batches/{id}/events: what has happened to a batch, and who did what. /v1/audit: who did what to anything."""

from collections.abc import Sequence

from flask import Blueprint

from store import events
from store.batches import BATCHES
from store.records import Event
from tasks.webhooks import delivery
from webapp import work
from webapp.document import operation
from webapp.requests import caller, listed
from webapp.wire.events import Actor, EventObject, EventPage, ListActions, ListEvents

routes = Blueprint("events", __name__)


@routes.get("/v1/batches/<batch_id>/events")
@operation(EventPage, query=ListEvents, refusals=(404,))
def list_(batch_id: str) -> EventPage:
    """List what has happened to a batch, oldest first."""
    return to_wire(*listed(events.page, ListEvents, work.get(BATCHES, batch_id)))


def to_wire(records: Sequence[Event], has_more: bool) -> EventPage:
    data = [
        EventObject(
            **delivery.payload(event),
            by=Actor(key_id=event.key_id, name=event.key_name or event.key_id) if event.key_id else None,
        )
        for event in records
    ]
    return EventPage.of(data, has_more=has_more)


@routes.get("/v1/audit")
@operation(EventPage, query=ListActions)
def audit() -> EventPage:
    """List who did what and when, newest first: in the project, or for an admin key in all projects."""
    owner = caller()
    return to_wire(*listed(events.actions, ListActions, None if owner.admin else owner.project_id))
