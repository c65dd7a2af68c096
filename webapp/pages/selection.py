"""/selected: cancel, retry, pause or resume several batches and jobs of the list at once, after a question."""

import secrets
from dataclasses import dataclass
from typing import Literal, get_args

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard.errors import BatchyardError, NotFoundError, RequestError
from batchyard.statuses import JOB_PAUSABLE, PAUSABLE, TERMINAL
from store.batches import BATCHES
from store.jobs.lifecycle import JOBS
from store.records import Batch, Job
from webapp.batches import get_batch
from webapp.pages.batches import retry_once
from webapp.port import port
from webapp.work import control, get, title

routes = Blueprint("selection", __name__, url_prefix="/selected")

Action = Literal["cancel", "retry", "pause", "resume"]
MOST = 100
"""The most batches and jobs at once: as many as a page of the list has."""


@dataclass(frozen=True)
class SelectedWork:
    """A batch or a job that was selected. `refusal` says why the action cannot be done; None if it can."""

    id: str
    name: str
    requests: int
    refusal: str | None


@routes.get("")
def show() -> ResponseReturnValue:
    """Ask whether to do it, and say what cannot be done."""
    ids = flask.request.args.getlist("id")
    if not ids:
        raise RequestError("Nothing is selected: tick the boxes next to the names first.", param="id")
    if flask.request.args.get("action") == "compare":
        if len(ids) != 2 or len({work_id.startswith("job_") for work_id in ids}) != 1:
            raise RequestError("Tick two batches or two jobs to compare them.", param="id")
        second, first = ids  # the newer one stands above the other in the list
        return flask.redirect(flask.url_for("pages.compare.show", a=first, b=second), 303)
    action = _action(flask.request.args.get("action"))
    return flask.render_template(
        "selection.html",
        action=action,
        choices=[_choice(action, work_id) for work_id in dict.fromkeys(ids[:MOST])],
        once=secrets.token_hex(16),
    )


@routes.post("")
def act() -> ResponseReturnValue:
    """Do it to each, whatever becomes of the others. Show those that could not be done."""
    action = _action(flask.request.form.get("action"))
    refused = []
    for work_id in dict.fromkeys(flask.request.form.getlist("id")[:MOST]):
        try:
            is_job = work_id.startswith("job_")
            if action == "retry" and is_job:
                port().retry(work_id)
            elif action == "retry":
                retry_once(get_batch(work_id))
            elif is_job:
                control(JOBS, work_id, action)
            else:
                control(BATCHES, work_id, action)
        except BatchyardError as error:
            refused.append(SelectedWork(work_id, _choice(action, work_id).name, 0, error.message))
    if refused:
        return flask.render_template("selection.html", action=action, choices=refused, once=""), 409
    return flask.redirect(flask.url_for("pages.overview.show"), 303)


def _action(text: str | None) -> Action:
    for action in get_args(Action):
        if action == text:
            return action  # type: ignore[no-any-return]
    raise RequestError(f"Choose one of {', '.join(get_args(Action))}.", param="action")


def _choice(action: Action, work_id: str) -> SelectedWork:
    try:
        work: Batch | Job = get(JOBS, work_id) if work_id.startswith("job_") else get_batch(work_id)
    except NotFoundError as error:
        return SelectedWork(work_id, "", 0, error.message)
    return SelectedWork(work.id, title(work), work.total, _refusal(action, work))


def _refusal(action: Action, work: Batch | Job) -> str | None:
    if action == "cancel":
        return f"is {work.status} already" if work.status in TERMINAL or work.status == "cancelling" else None
    if action in ("pause", "resume"):
        if work.status not in (JOB_PAUSABLE if isinstance(work, Job) else PAUSABLE):
            return f"is {work.status} already"
        if (work.paused_at is None) == (action == "resume"):
            return "is not paused" if action == "resume" else "is paused already"
        return None
    if work.status not in TERMINAL:
        return "has not ended"
    if isinstance(work, Job):
        return None if work.completed < work.total else "has no item that did not complete"
    return None if work.error_file_id else "has no failed request"
