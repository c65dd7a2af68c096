"""/: the project's batches and jobs in one list with filters, and the queue, of all projects for administrators."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import flask
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue
from pydantic import Field
from sqlalchemy.orm import Session

from batchyard import durations
from batchyard.statuses import TERMINAL
from store import keys
from store.records import Batch, Job
from store.work import overview as work_list
from store.work.overview import Sort, Wanted, Work, WorkFilter
from webapp import batches, metrics
from webapp.pages import sessions
from webapp.pages.forms import Blank, PageParams
from webapp.port import port
from webapp.requests import caller, current_context, query
from webapp.wire.batches import BatchObject
from webapp.wire.jobs import JobObject
from webapp.work import title

routes = Blueprint("overview", __name__)

CREATORS = 100
"""The number of keys offered as creators, newest first. Any other can be named in the URL."""
STATUSES = {
    "unfinished": "not ended",
    "ended": "ended",
    "in_progress": "in progress",
    **{word: word for word in ("paused", "completed", "failed", "expired", "cancelled")},
}
SINCE = {"1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days"}
SORTS = {
    "next": "running first",
    "newest": "newest first",
    "oldest": "oldest first",
    "failures": "most failures",
    "largest": "largest first",
}
TABS: dict[str, dict[str, Any]] = {
    "Running": {"status": "unfinished"},
    "Needs attention": {"attention": True, "since": "7d"},
    "Finished": {"status": "ended", "since": "24h"},
}
"""What the list is asked for most, with its filter; the unfiltered list has a group for each."""


class ListParams(PageParams):
    """The query parameters of the list. `seen` is the stamp of the list that the browser shows."""

    limit: int = Field(50, ge=1, le=100)
    q: Annotated[str | None, Blank] = Field(None, max_length=200)
    status: Annotated[Wanted | None, Blank] = None
    model: Annotated[str | None, Blank] = Field(None, max_length=256)
    creator: Annotated[str | None, Blank] = Field(None, max_length=64)
    since: Annotated[Literal["1h", "24h", "7d", "30d"] | None, Blank] = None
    attention: bool = False
    sort: Sort = "next"
    seen: str | None = Field(None, max_length=128)

    def work_filter(self) -> WorkFilter:
        text, since = (self.q or "").strip() or None, self.since and time.time() - durations.seconds(self.since)
        return WorkFilter(text, self.status, self.model, self.creator, since, self.attention)

    def url(self, **changes: Any) -> str:
        values = self.model_dump(exclude_defaults=True, exclude={"seen"}) | changes
        fields = {name: 1 if value is True else value for name, value in values.items() if value is not None}
        return f"{flask.url_for('pages.overview.show')}?{urlencode(fields)}"


@routes.get("/")
def show() -> ResponseReturnValue:
    """Show the page. For htmx: its live part, or nothing (204) if what the browser shows is still so."""
    owner, context = caller(), current_context()
    params, live = query(ListParams), "HX-Request" in flask.request.headers
    filtered = bool(params.model_dump(exclude_defaults=True, exclude={"after", "limit", "seen", "sort"}))
    with context.database.read() as session:
        unfinished = work_list.unfinished(session, owner.project_id)
        stamp = f"{work_list.newest(session, owner.project_id)} {unfinished}"
        if live and not unfinished and params.seen == stamp:
            return Response(status=204)
        records, has_more = work_list.page(
            session, owner.project_id, params.work_filter(), sort=params.sort, after=params.after, limit=params.limit
        )
        last = records[-1].id if records else None
        groups = {} if filtered or params.sort != "next" else _groups(session, owner.project_id, records)
        records.sort(key=lambda record: [*TABS].index(groups[record.id]) if groups else 0)
        tabs = {name: ListParams(**fields) for name, fields in TABS.items()}
        numbers = {name: work_list.count(session, owner.project_id, tab.work_filter()) for name, tab in tabs.items()}
        creators = keys.named(session, owner.project_id, {record.created_by for record in records if record.created_by})
    of_batches = [record for record in records if isinstance(record, Batch)]
    of_jobs = [record for record in records if isinstance(record, Job)]
    shown: list[BatchObject | JobObject] = [*batches.to_wire(of_batches)] if of_batches else []
    shown += port().to_wire(of_jobs) if of_jobs else []
    by_id = {one.id: one for one in shown}
    variables = {
        "alike": Counter(key for one in records for key in _names(one)),
        "groups": groups,
        "tabs": tabs,
        "numbers": numbers,
        "now": time.time(),
        "params": params,
        "unfinished": unfinished,
        "rows": [by_id[record.id] for record in records],
        "names": {record.id: title(record) for record in records if isinstance(record, Job)},
        "creators": creators,
        "filtered": filtered,
        "following": params.url(after=last) if has_more else None,
        "poll": params.url(seen=stamp),
        "models": {name: name for name in context.models},
        "snapshot": None if filtered or params.after else metrics.snapshot_for_caller(),
    }
    if live:
        return flask.render_template("overview_live.html", **variables)
    visitor = sessions.visitor()
    with context.database.read() as session:
        project_keys, _ = keys.page(session, project=visitor.project if visitor else "", limit=CREATORS)
    return flask.render_template(
        "overview.html",
        **variables,
        statuses=STATUSES,
        periods=SINCE,
        sorts=SORTS,
        project_keys={key.id: key.name for key in project_keys},
    )


def _groups(session: Session, project_id: str, records: Sequence[Work]) -> dict[str, str]:
    """Return the group of each record by id: what waits for a person is in one of its own, even if it runs."""
    (running, _), (attention, fields), (finished, _) = TABS.items()
    ids, wanted = [record.id for record in records], ListParams(**fields).work_filter()
    waiting, _ = work_list.page(session, project_id, wanted, limit=len(ids), condition=lambda one: one.id.in_(ids))
    groups = {record.id: finished if record.status in TERMINAL else running for record in records}
    return groups | {record.id: attention for record in waiting}


def _names(work: Work) -> tuple[object, ...]:
    """Return what work is known by, each more exact than the one before."""
    name, models = title(work), ", ".join(work.models)
    return name, (name, models), (name, models, work.created_at)
