"""/: the batches of the project that run, wait and have ended, and the queue, of all projects for administrators."""

from __future__ import annotations

import time

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from store import batches, files
from webapp import metrics
from webapp.batches import to_wire
from webapp.pages.forms import PageParams
from webapp.requests import caller, current_context, query

routes = Blueprint("overview", __name__)

MAX_RUNNING = 25
"""The number of unfinished batches shown one by one; the others are only counted."""


@routes.get("/")
def show() -> ResponseReturnValue:
    """Show the page. For htmx: only its live part."""
    owner, context = caller(), current_context()
    params = query(PageParams)
    with context.database.read() as session:
        counts = batches.counts(session, owner.project_id)
        running = [] if params.after else batches.running(session, owner.project_id, limit=MAX_RUNNING)
        ended, has_more = batches.ended(session, owner.project_id, after=params.after, limit=params.limit)
        names = files.names(session, owner.project_id, {batch.input_file_id for batch in (*running, *ended)})
    data = to_wire([*running, *ended])
    return flask.render_template(
        "overview_live.html" if flask.request.headers.get("HX-Request") else "overview.html",
        now=time.time(),
        counts=counts,
        running=data[: len(running)],
        ended=data[len(running) :],
        names=names,
        older=params.after is not None,
        has_more=has_more,
        limit=params.limit,
        snapshot=metrics.own_snapshot(),
    )
