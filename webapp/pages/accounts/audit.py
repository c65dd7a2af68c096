"""/audit: who did what and when in all projects, for administrators."""

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import Field

from store import events, projects
from store.records import Event
from webapp.pages.forms import PageParams
from webapp.requests import administrator, caller, current_context, listed

routes = Blueprint("audit", __name__, url_prefix="/audit")


class AuditParams(PageParams):
    limit: int = Field(100, ge=1, le=100)


PAGES = {
    "batch": ("pages.batches.show", "batch_id"),
    "job": ("pages.jobs.show", "job_id"),
    "item": ("pages.items.show", "job_id"),
    "schedule": ("pages.schedules.show_one", "schedule_id"),
    "webhook": ("pages.webhooks.show_one", "webhook_id"),
    "budget": ("pages.keys.show_project", "project_id"),
}
"""The page of what an event is about, and its parameter, by the first word of the event's type."""
OF_ALL_PROJECTS = ("budget", "key")


def _link(event: Event) -> str | None:
    """Return the address of the page of what was changed; None if it has none that the visitor may see."""
    kind, _, verb = event.type.partition(".")
    if verb == "deleted" or (event.project_id != caller().project_id and kind not in OF_ALL_PROJECTS):
        return None
    if kind == "key":
        return flask.url_for("pages.keys.show", _anchor=f"key-{event.data['id']}")
    if kind not in PAGES:
        return None
    endpoint, parameter = PAGES[kind]
    values = {parameter: event.data["id"]} | ({"number": event.data["number"]} if kind == "item" else {})
    return flask.url_for(endpoint, **values)


@routes.get("")
def show() -> ResponseReturnValue:
    administrator()
    records, has_more = listed(events.actions, AuditParams, None)
    with current_context().database.read() as session:
        names = projects.names(session, {record.project_id for record in records})
    return flask.render_template(
        "audit.html",
        events=records,
        links={event.id: _link(event) for event in records},
        names=names,
        has_more=has_more,
    )
