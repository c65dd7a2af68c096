"""Posting a reply: a verdict, an item that is put back, or one that a person has resolved.

A resolved item has ended before, so its new state is written at once; if the job has ended, too, its artifacts are
written again (jobs.finish).
"""

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlalchemy.orm import Session

from batchyard import json_lines
from batchyard.errors import ConflictError
from batchyard.statuses import TERMINAL
from jobs import messages, progress
from jobs.items import states
from jobs.items.states import ItemCursor
from jobs.kinds.registry import kind_of_job
from store import events
from store.formats import job_chunks
from store.jobs import chunk_records, lifecycle, replies
from store.keys import Principal
from store.records import Job
from tasks.context import AppContext

MENDABLE = ("stuck", "failed")


def give_verdict(
    context: AppContext,
    caller: Principal,
    job_id: str,
    number: int,
    verdict: Mapping[str, Any],
    turn: int | None = None,
) -> None:
    """Reply to an item that waits for a verdict.

    `verdict` has `gate`, `passed`, and perhaps `category`, `message` and `by`. With its `turn`, a verdict that is sent
    again cannot judge the item's next answer.

    Raises NotFoundError; ConflictError: the item does not wait for a verdict in this turn and for this gate.
    """
    job, cursor = _find(context, caller.project_id, job_id, number)
    _check_in_progress(job, "its items wait for no verdict any more")
    if cursor.state != job_chunks.WAITING:
        raise ConflictError(f"Item {number} is {cursor.state}: it waits for no verdict.", code="not_waiting")
    gate = str(cursor.result.get("gate"))
    if verdict["gate"] != gate:
        message = f"Item {number} waits for a verdict of gate '{gate}', not of '{verdict['gate']}'."
        raise ConflictError(message, code="not_waiting", param="verdict.gate")
    if turn not in (None, cursor.turns):
        message = f"Item {number} waits in turn {cursor.turns}, not in turn {turn}."
        raise ConflictError(message, code="not_waiting", param="verdict.turn")
    with context.database.write() as session:
        job = lifecycle.locked(session, caller.project_id, job_id)
        _check_in_progress(job, "its items wait for no verdict any more")
        replies.add(session, job_id, cursor.key, "verdict", verdict, caller.key_id)
        events.act(session, caller, "item.judged", job, number=number, gate=gate, passed=verdict["passed"])
        lifecycle.hasten(session, job_id)
    messages.wake(context.redis, job_id)


def put_back(context: AppContext, caller: Principal, job_id: str, number: int, hint: str | None) -> None:
    """Have a stuck or failed item begin its next life.

    Raises NotFoundError; ConflictError for another state or job, or an item put back or resolved already.
    """
    ended = f"retry its items in a new job: POST /v1/jobs/{job_id}/retry"
    job, cursor = _find(context, caller.project_id, job_id, number)
    _check_in_progress(job, ended)
    _check_mendable(number, cursor, "put back")
    with context.database.write() as session:
        job = lifecycle.locked(session, caller.project_id, job_id)
        _check_in_progress(job, ended)
        _check_untouched(session, job, number, cursor)
        replies.add(session, job_id, cursor.key, "requeue", {"hint": hint, "state": cursor.state}, caller.key_id)
        events.act(session, caller, "item.requeued", job, number=number)
        lifecycle.hasten(session, job_id)
    messages.wake(context.redis, job_id)


def resolve(context: AppContext, caller: Principal, job_id: str, number: int, text: str, by: str | None) -> None:
    """Complete a stuck or failed item with a text of a person: `by`, or the key if None.

    Raises as `put_back`, but the job may have ended; ConflictError if only its artifacts are left.
    """
    job, cursor = _find(context, caller.project_id, job_id, number)
    _check_mendable(number, cursor, "resolved")
    result = {**cursor.result, "text": text, "resolved_by": by or caller.key_id}
    row = {
        **{name: getattr(cursor, name) for name in ("position", "number", "custom_id", "life", "turns", "started_at")},
        **{"state": "completed", "result": json_lines.dumps(result).decode(), "error": None, "ended_at": time.time()},
    }
    sha256 = job_chunks.write(context.artifacts, pa.Table.from_pylist([row], job_chunks.RESULT))
    with context.database.write() as session:
        job = lifecycle.locked(session, caller.project_id, job_id)
        if job.status not in TERMINAL:
            _check_in_progress(job, "wait until it has ended")
        _check_untouched(session, job, number, cursor)
        replies.add(session, job_id, cursor.key, "resolve", {"text": text, "by": by or caller.key_id}, caller.key_id)
        events.act(session, caller, "item.resolved", job, number=number)
        chunk_records.add(session, job_id, "result", sha256, 1)
        lifecycle.resolved(session, job, cursor.state)
    if job.status in TERMINAL:
        messages.finish(job_id)
    else:
        progress.publish(context, job_id)


def _find(context: AppContext, project_id: str, job_id: str, number: int) -> tuple[Job, ItemCursor]:
    with context.database.read() as session:
        job = lifecycle.get(session, project_id, job_id)
    kind_of_job(context, job).check_repliable(job, number)
    return job, states.cursor(context, job, number)


def _check_in_progress(job: Job, otherwise: str) -> None:
    if job.status != "in_progress" or job.outcome is not None:
        status = "ending" if job.status == "in_progress" else job.status
        raise ConflictError(f"Job '{job.id}' is {status}; {otherwise}.", param="job_id")


def _check_mendable(number: int, cursor: ItemCursor, done: str) -> None:
    if cursor.state not in MENDABLE:
        message = f"Item {number} is {cursor.state}; only items that are stuck or failed can be {done}."
        raise ConflictError(message, code="not_stuck")


def _check_untouched(session: Session, job: Job, number: int, cursor: ItemCursor) -> None:
    """Raise ConflictError if a reply has changed the item since."""
    for reply in replies.of_item(session, job.id, cursor.position):
        if reply.life == cursor.life and reply.kind != "verdict":
            done = "resolved" if reply.kind == "resolve" else "put back"
            raise ConflictError(f"Item {number} was {done} already.", code="already_replied")
