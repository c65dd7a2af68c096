"""/: what runs now, what comes next, and what has ended."""

from __future__ import annotations

import time

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from store import batches, files
from tasks import metrics
from webapp.batches import to_wire
from webapp.pages.forms import Older
from webapp.requests import caller, current_context, query

routes = Blueprint("overview", __name__)

MOST_RUNNING = 25
"""Batches that have not ended are shown one by one, as many as this; of the others there is the number."""


@routes.get("/")
def show() -> ResponseReturnValue:
    """The page, or for htmx only what changes on it."""
    owner, context = caller(), current_context()
    asked = query(Older)
    with context.database.read() as session:
        counts = batches.counts(session, owner.project_id)
        running = [] if asked.after else batches.running(session, owner.project_id, limit=MOST_RUNNING)
        ended, more = batches.ended(session, owner.project_id, after=asked.after, limit=asked.limit)
        names = files.names(session, {batch.input_file_id for batch in (*running, *ended)})
    shown = to_wire([*running, *ended])
    return flask.render_template(
        "overview_live.html" if flask.request.headers.get("HX-Request") else "overview.html",
        now=time.time(),
        counts=counts,
        running=shown[: len(running)],
        ended=shown[len(running) :],
        names=names,
        older=asked.after is not None,
        more=more,
        limit=asked.limit,
        seen=metrics.collect(context, with_processes=False),
    )
