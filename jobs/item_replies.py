"""Posting a reply: a verdict, an item that is put back, or one that a person has resolved.

A resolved item has ended before, so its new state is written at once; if the job has ended, too, its artifacts are
written again (jobs.finish).
"""

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from batchyard import json_lines
from batchyard.errors import ConflictError
from batchyard.statuses import TERMINAL
from jobs import messages, progress
from jobs.items import states
from jobs.kinds.registry import kind_of_job
from store import events
from store.formats import job_chunks
from store.jobs import chunk_records, lifecycle, replies
from store.keys import Principal
from store.records import Job, ReplyKind
from tasks.context import AppContext

MENDABLE = ("stuck", "failed")
_EVENTS: Mapping[ReplyKind, events.Action] = {
    "verdict": "item.judged",
    "requeue": "item.requeued",
    "resolve": "item.resolved",
}
_DONE = {"requeue": "put back", "resolve": "resolved"}
_REMEDIES = {
    "verdict": "its items wait for no verdict any more",
    "requeue": "retry its items in a new job: POST /v1/jobs/{id}/retry",
    "resolve": "wait until it has ended",
}
"""What to do about a job that is not in progress, by the kind of the reply."""


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
    reply = _Reply(context, caller, job_id, number, "verdict")
    item, gate = reply.item, reply.item.reason
    if item.state != job_chunks.WAITING:
        raise ConflictError(f"Item {number} is {item.state}: it waits for no verdict.", code="not_waiting")
    if verdict["gate"] != gate:
        message = f"Item {number} waits for a verdict of gate '{gate}', not of '{verdict['gate']}'."
        raise ConflictError(message, code="not_waiting", param="verdict.gate")
    if turn not in (None, item.turn):
        message = f"Item {number} waits in turn {item.turn}, not in turn {turn}."
        raise ConflictError(message, code="not_waiting", param="verdict.turn")
    reply.record(verdict, gate=gate, passed=verdict["passed"])
    messages.wake(context.redis, job_id)


def put_back(context: AppContext, caller: Principal, job_id: str, number: int, hint: str | None) -> None:
    """Have a stuck or failed item begin its next life.

    Raises NotFoundError; ConflictError for another state or job, or an item put back or resolved already.
    """
    reply = _Reply(context, caller, job_id, number, "requeue")
    reply.record({"hint": hint, "state": reply.item.state})
    messages.wake(context.redis, job_id)


def resolve(context: AppContext, caller: Principal, job_id: str, number: int, text: str, by: str | None) -> None:
    """Complete a stuck or failed item with a text of a person: `by`, or the key if None.

    Raises as `put_back`, but the job may have ended; ConflictError if only its artifacts are left.
    """
    reply = _Reply(context, caller, job_id, number, "resolve")
    body = {"text": text, "by": by or caller.key_id}
    result = {**json_lines.loads(reply.row["result"]), "text": text, "resolved_by": body["by"]}
    end = {"state": "completed", "result": json_lines.dumps(result), "error": None, "ended_at": time.time()}
    sha256 = job_chunks.write(context.artifacts, pa.Table.from_pylist([reply.row | end], job_chunks.RESULT))
    job = reply.record(body, sha256)
    if job.status in TERMINAL:
        messages.finish(job_id)
    else:
        progress.publish(context, job_id)


class _Reply:
    """A reply to an item, as that was read with its newest result row. Raises NotFoundError, ConflictError."""

    def __init__(self, context: AppContext, caller: Principal, job_id: str, number: int, kind: ReplyKind) -> None:
        self._context, self._caller, self._kind = context, caller, kind
        with context.database.read() as session:
            self._job = lifecycle.get(session, caller.project_id, job_id)
        if not kind_of_job(context, self._job).has_journal:
            message = f"Item {number} of job '{job_id}' is a job itself; look at its items, or create '{job_id}' again."
            raise ConflictError(message, param="number")
        known, self._position = states.find(context, self._job, number)
        _check_job(self._job, kind)
        self.row = known.rows([self._position], job_chunks.RESULT.names).get(self._position) or {}
        self.item = known.item(self._position, "", self.row or None)
        if kind != "verdict" and self.item.state not in MENDABLE:
            message = f"Item {number} is {self.item.state}; only items that are stuck or failed can be {_DONE[kind]}."
            raise ConflictError(message, code="not_stuck")

    def record(self, body: Mapping[str, Any], chunk_sha256: str | None = None, **event: Any) -> Job:
        """Record it, with the chunk of the item's new end. Raises ConflictError if the item has changed since."""
        item, caller, kind = self.item, self._caller, self._kind
        with self._context.database.write() as session:
            job = lifecycle.locked(session, caller.project_id, self._job.id)
            _check_job(job, kind)
            for reply in replies.of_item(session, job.id, self._position):
                if reply.life == item.life and reply.kind in _DONE:
                    raise ConflictError(f"Item {item.number} was {_DONE[reply.kind]} already.", code="already_replied")
            replies.add(session, job.id, (self._position, item.life, item.turn or 0), kind, body, caller.key_id)
            events.act(session, caller, _EVENTS[kind], job, number=item.number, **event)
            if chunk_sha256 is None:
                lifecycle.hasten(session, job.id)
            else:
                chunk_records.add(session, job.id, "result", chunk_sha256, 1)
                lifecycle.resolved(session, job, item.state)
        return job


def _check_job(job: Job, kind: ReplyKind) -> None:
    if (job.status != "in_progress" or job.outcome is not None) and (kind != "resolve" or job.status not in TERMINAL):
        status = "ending" if job.status == "in_progress" else job.status
        raise ConflictError(f"Job '{job.id}' is {status}; {_REMEDIES[kind].format(id=job.id)}.", param="job_id")
