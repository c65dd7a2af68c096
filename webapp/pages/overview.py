"""/: the batches and jobs of the project that run, wait and have ended, and the queue, of all projects for admins."""

from __future__ import annotations

import time
from collections.abc import Sequence

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from store import files
from store.jobs import work
from store.jobs.records import Job
from store.jobs.work import Work
from store.records import Batch
from webapp import batches, jobs, metrics
from webapp.job_wire import JobObject
from webapp.pages.forms import PageParams
from webapp.pages.jobs import title
from webapp.requests import caller, current_context, query
from webapp.wire import BatchObject

routes = Blueprint("overview", __name__)

MAX_RUNNING = 25
"""The number of unfinished batches and jobs shown one by one; the others are only counted."""


@routes.get("/")
def show() -> ResponseReturnValue:
    """Show the page. For htmx: only its live part."""
    owner, context = caller(), current_context()
    params = query(PageParams)
    with context.database.read() as session:
        unfinished = work.unfinished(session, owner.project_id)
        running = [] if params.after else work.running(session, owner.project_id, limit=MAX_RUNNING)
        ended, has_more = work.ended(session, owner.project_id, after=params.after, limit=params.limit)
        records = (*running, *ended)
        names = files.names(
            session, owner.project_id, {record.input_file_id for record in records if isinstance(record, Batch)}
        )
    data = _to_wire(records)
    return flask.render_template(
        "overview_live.html" if flask.request.headers.get("HX-Request") else "overview.html",
        now=time.time(),
        unfinished=unfinished,
        running=data[: len(running)],
        ended=data[len(running) :],
        names=names | {record.id: title(record) for record in records if isinstance(record, Job)},
        older=params.after is not None,
        has_more=has_more,
        limit=params.limit,
        snapshot=metrics.own_snapshot(),
    )


def _to_wire(records: Sequence[Work]) -> list[BatchObject | JobObject]:
    """Return batches and jobs as they cross the wire, in their order."""
    batch_records = [record for record in records if isinstance(record, Batch)]
    job_records = [record for record in records if isinstance(record, Job)]
    objects: list[BatchObject | JobObject] = [
        *(batches.to_wire(batch_records) if batch_records else ()),
        *(jobs.to_wire(job_records) if job_records else ()),
    ]
    by_id = {entry.id: entry for entry in objects}
    return [by_id[record.id] for record in records]
