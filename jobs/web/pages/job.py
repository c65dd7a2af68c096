"""/jobs/<id>: one job with its progress and actions, and its report, items, files or options, each on a tab."""

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, cast

import flask
import orjson
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue
from pydantic import Field

from batchyard import json_lines
from batchyard.errors import BatchyardError, ConflictError, NotFoundError, UnavailableError
from batchyard.statuses import ITEM_STATES, TERMINAL, ItemState
from batchyard.wording import PLAN_SHARES, cut
from jobs.catalogue import catalogue_of
from jobs.finishing.artifacts import RESULTS
from jobs.items import listing, sample
from jobs.kinds.kind import ChildRow
from jobs.kinds.registry import kind_of_job
from jobs.submission import again
from jobs.web.jobs import create_once, get_job, to_wire
from store import events
from store.batches import PLAN
from store.jobs import lifecycle
from store.jobs import reading as job_records
from store.jobs.lifecycle import JOBS
from store.records import File, Job
from store.work.lifecycle import Verb
from webapp import batches
from webapp.files import get_file, send
from webapp.pages import forms, metrics
from webapp.pages.answers import text_of
from webapp.pages.batches import MAX_EVENTS, steps
from webapp.pages.charts.shapes import Chart
from webapp.pages.charts.view import charts_of
from webapp.pages.forms import Blank
from webapp.requests import caller, current_context, query
from webapp.wire.batches import BatchObject
from webapp.wire.lists import QueryParams
from webapp.work import control, title

routes = Blueprint("jobs", __name__, url_prefix="/jobs/<job_id>", template_folder="../templates")

ROWS = 20
MAX_ERRORS = 50
MAX_CHILD_METRICS = 4
MAX_VIEW_BYTES = 1024 * 1024
VIEW = "view.json"
SAMPLES = "samples"
"""A counter of jobs whose items have scored samples, as recipe `rollout` counts them."""
TREND = 12
"""Most runs of one name that are shown."""
MOST = 60
"""Characters of a changed option."""
WRONG_SAMPLES = "wrong"
"""A counter of jobs whose wrong answers are what people look for, as recipe `evaluate` counts them."""


Tab: TypeAlias = Literal["errors", "report", "jobs", "items", "files", "options"]


class ItemFilter(QueryParams):
    """The items to show. `after`: a number, or the lines of results before items by their samples."""

    state: Annotated[ItemState | listing.Kind | None, Blank] = None
    custom_id: Annotated[str | None, Blank] = Field(None, max_length=256)
    after: int | None = Field(None, ge=0, le=2**53)


@dataclass
class ItemList:
    """A page of items. `after` begins the next one; `problem` says why there are none."""

    items: list[Any]
    after: int | None = None
    problem: str = ""


class JobParams(QueryParams):
    tab: Tab | None = Field(None, description="None: the job's first tab")


@routes.get("")
def show(job_id: str) -> ResponseReturnValue:
    """Show the page. For htmx: its live part, or a reload of the page once the job has ended."""
    job, chosen = get_job(job_id), query(JobParams).tab
    live = "HX-Request" in flask.request.headers
    if live and job.status in TERMINAL:
        return Response(headers={"HX-Refresh": "true"})
    page = _JobPage(job)
    if live:
        return flask.render_template("job_jobs.html" if chosen == "jobs" else "job_live.html", **page.variables())
    return page.render(chosen)


@routes.get("/items")
def items(job_id: str) -> ResponseReturnValue:
    """Show the page with the items of a state. For htmx: only them, without the page."""
    job, chosen = get_job(job_id), query(ItemFilter)
    if "HX-Request" not in flask.request.headers:
        return _JobPage(job).render("items", chosen)
    return flask.render_template("items_table.html", **_list_variables(job, chosen, _list(job, chosen)))


class _JobPage:
    def __init__(self, job: Job) -> None:
        context = current_context()
        self._job = job
        self._data = to_wire([job])[0]
        self._children = kind_of_job(context, job).children(context, job)
        with context.database.read() as session:
            self._events, _ = events.page(session, job, after=None, limit=MAX_EVENTS)
            stage_batches = job_records.stage_batches(session, [job.id])[job.id]
            self._view = lifecycle.find_artifact(session, job.project_id, job.id, VIEW)
        shown = batches.to_wire([batch for _, batch in stage_batches if batch is not None])
        by_id = {batch.id: batch for batch in shown}
        self._stages = [(stage, by_id.get(stage.batch_id or "")) for stage in self._data.batchyard.stages]

    def variables(self) -> dict[str, Any]:
        return {
            "now": time.time(),
            "job": self._data,
            "title": title(self._job),
            "ended": self._job.status in TERMINAL,
            "stages": self._stages,
            "children": self._children,
            "score": _score(self._job),
            "wrong": listing.WRONG if listing.WRONG in _kinds(self._job) else None,
            "child_metrics": _common_metrics(self._children),
            "speed": [_total(self._stages, name) for name in ("rows_per_second", "tokens_per_second")],
        }

    def _tabs(self) -> dict[Tab, str]:
        report = self._data.batchyard.report
        there: dict[Tab, bool] = {
            "errors": bool(self._data.errors),
            "report": self._view is not None or bool(self._job.metrics) or report is not None,
            "jobs": bool(self._children),
            "items": bool(self._job.total) and not self._children,
            "files": True,
            "options": True,
        }
        return {tab: tab.capitalize() for tab, is_there in there.items() if is_there}

    def render(self, chosen: Tab | None, filtered: ItemFilter | None = None) -> str:
        """Render the page with a tab, by default the first. `filtered`: items to show, by default the most telling."""
        job, tabs = self._job, self._tabs()
        tab = chosen if chosen in tabs else next(iter(tabs))
        variables = self.variables() | {"tabs": tabs, "tab": tab, "main": _main(job), "once": secrets.token_hex(16)}
        if job.sampling and job.paused_by == PLAN:
            with suppress(UnavailableError):  # the other tabs do without its artifacts
                variables |= {"plan": sample.report(current_context(), job), "plan_shares": PLAN_SHARES}
        if tab == "report":
            variables |= {"groups": metrics.groups(job.metrics), "charts": _charts(self._view), "runs": _runs(job)}
        elif tab == "items":
            first, filtered = filtered is None, filtered or ItemFilter()
            listed = _most_telling(job, filtered) if first else _list(job, filtered)
            counts = {"waiting_for_verdict": job.waiting_for_verdict, "stuck": job.stuck} if first else {}
            needing = [ItemFilter(state=state) for state, count in counts.items() if count]  # a person
            lists = [(each, found) for each in needing if (found := _list(job, each)).items]
            variables |= _list_variables(job, filtered, listed) | {"needing": lists}
        elif tab == "options":
            variables["steps"] = steps(job, self._events)
        return flask.render_template(
            "job.html", **variables, label=tabs[tab], input_name=job.input_name, max_errors=MAX_ERRORS
        )


def _common_metrics(children: list[ChildRow]) -> list[str]:
    """Return the names of the first metrics that children have: means before deviations, and these before counts."""
    names = {
        name: value for child in children for name, value in child.metrics.items() if isinstance(value, int | float)
    }
    return sorted(names, key=lambda name: (not isinstance(names[name], float), "/" in name or name.startswith("std")))[
        :MAX_CHILD_METRICS
    ]


def _total(stages: list[tuple[Any, BatchObject | None]], rate: str) -> float | None:
    """Return the sum of a rate over a job's batches, None if none was measured."""
    rates = [getattr(batch.batchyard, rate) for _, batch in stages if batch is not None]
    return sum(measured) if (measured := [one for one in rates if one is not None]) else None


def _main(job: Job) -> str:
    try:
        return catalogue_of(current_context()).recipe(job.recipe).main
    except BatchyardError:  # the deployment has it no longer
        return RESULTS


def _score(job: Job) -> tuple[metrics.Figure, float] | None:
    summaries = [step.get("summary") for step in job.post_process if step["step"] == "score"]
    return metrics.headline(job.metrics, next((summary["accuracy"] for summary in summaries if summary), None))


def _runs(job: Job) -> list[dict[str, Any]]:
    """Return the jobs of the job's name that have a score, newest first, each with the options that it has changed."""
    with current_context().database.read() as session:
        alike = job_records.runs(session, job, TREND)
    runs: list[dict[str, Any]] = [{"job": one, "score": score} for one in alike if (score := _score(one))]
    for now, before in pairwise(runs):
        options, others = now["job"].options, before["job"].options
        now["changed"] = [
            f"{name}: {cut(text_of(others.get(name)), MOST)} → {cut(text_of(value), MOST)}"
            for name, value in options.items()
            if value != others.get(name) and name != "compare_with"
        ]
    return runs


def _charts(view: File | None) -> list[Chart]:
    if view is None:
        return []
    if view.bytes > MAX_VIEW_BYTES:
        return [Chart(VIEW, problem=f"is too large to be drawn: {view.bytes:,} bytes")]
    try:
        return charts_of(json_lines.loads(current_context().artifacts.read(view.sha256)))
    except (orjson.JSONDecodeError, BatchyardError) as error:
        return [Chart(VIEW, problem=f"cannot be read: {error}")]


def _list(job: Job, chosen: ItemFilter) -> ItemList:
    context = current_context()
    try:
        state = chosen.state
        if state == "sometimes_right" or state == "wrong":
            scored, after = listing.scored_page(context, job, state, chosen.after or 0, ROWS)
            return ItemList(scored, after)
        items, has_more = listing.page(
            context, job, state=state, custom_id=chosen.custom_id, after=chosen.after, limit=ROWS
        )
    except ConflictError as error:
        return ItemList([], problem=error.message)
    return ItemList(items, items[-1].number if has_more else None)


def _kinds(job: Job) -> list[listing.Kind]:
    """Return the kinds of items by their samples that the job may have, what people look at first before others."""
    if SAMPLES not in job.counters:
        return []
    kinds = [listing.SOMETIMES_RIGHT, listing.WRONG]
    return kinds[::-1] if WRONG_SAMPLES in job.counters else kinds


def _most_telling(job: Job, chosen: ItemFilter) -> ItemList:
    """Return the items that tell the most, or all if there are none of these. `chosen` is set to which."""
    if kinds := _kinds(job):
        chosen.state = kinds[0]
        listed = _list(job, chosen)
        if listed.items:
            return listed
        chosen.state = None
    return _list(job, chosen)


def _list_variables(job: Job, chosen: ItemFilter, listed: ItemList) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "chosen": chosen,
        "listed": listed,
        "states": [*_kinds(job), *ITEM_STATES],
    }


@routes.get("/input")
def download_input(job_id: str) -> Response:
    job = get_job(job_id)
    if job.input_file_id is None:
        raise NotFoundError(f"Job '{job_id}' has no input file.")
    return send(get_file(job.input_file_id))


@routes.get("/artifacts/<name>")
def download(job_id: str, name: str) -> Response:
    with current_context().database.read() as session:
        file = lifecycle.find_artifact(session, caller().project_id, job_id, name)
    if file is None:
        raise NotFoundError(f"No artifact '{name}' of job '{job_id}' found.")
    return send(file)


@routes.post("/cancel", endpoint="cancel")
@routes.post("/pause", endpoint="pause")
@routes.post("/resume", endpoint="resume")
def _control(job_id: str) -> ResponseReturnValue:
    return _redirect(control(JOBS, job_id, cast(Verb, flask.request.path.rpartition("/")[2])))


@routes.post("/retry")
def retry(job_id: str) -> ResponseReturnValue:
    return _redirect(retry_once(job_id))


def retry_once(job_id: str) -> Job:
    """Return a new job of the items that did not complete, one if a form is sent twice. Raises as `again.retry`."""
    context, project_id = current_context(), caller().project_id
    return create_once(forms.idempotency("retry", job_id), lambda: again.retry(context, project_id, job_id)).record


def _redirect(job: Job) -> ResponseReturnValue:
    return flask.redirect(flask.url_for("pages.jobs.show", job_id=job.id), 303)
