"""Watched folders: each new object becomes a batch or job, once, and its outcome is written beside it."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import logging
import re
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from batchyard import cron
from batchyard.cron import Cron
from batchyard.errors import NotFoundError, RequestError, UnavailableError
from store import schedules
from store.intake.buckets import Bucket, StoredObject
from store.intake.outputs import OutputFolder
from store.records import Batch, Schedule, WatchedObject
from store.schedules import EndedObject
from tasks.context import AppContext
from tasks.intake import imports
from tasks.intake.submission import Draft
from tasks.port import CheckedJob
from tasks.recurring import run_templates, runs
from tasks.recurring.runs import Outcome

log = logging.getLogger(__name__)

AT_ONCE = 50
"""New objects, and outcomes, of one schedule per tick; the next tick continues."""
MAX_OBJECTS = 20_000
"""Most objects below a watched folder: each tick lists them all."""
OUTCOME = ".outcome.json"


def run(context: AppContext, schedule: Schedule, at: int, ends_at: float) -> None:
    """Write outcomes, then make a batch or job of each new object, AT_ONCE at most, until `ends_at` (time.monotonic()).

    A folder or an object that cannot be read, or written, is a failed run of this time, and objects that a limit of the
    project holds back are a skipped one. They have their turn at the next time.
    """
    times = cron.parse(schedule.cron, schedule.timezone)
    pattern = schedule.input["url"].rpartition("/")[2]
    made, continues, more_outcomes = 0, False, False
    try:
        source = run_templates.watched_folder(context.settings, schedule.project_id, schedule.input["url"])
        problem, more_outcomes = _write_outcomes(context, schedule, source.url, ends_at)
        for tried, stored in enumerate(_new(context, schedule, source, pattern)):
            if continues := made == AT_ONCE or (tried > 0 and time.monotonic() > ends_at):
                break
            try:
                outcome = _run_object(context, schedule, times, at, source, stored)
            except UnavailableError as error:
                problem = Outcome("failed", f"{_name(stored)}: {error.message}")
                continue
            if outcome.is_limited:
                problem = Outcome("skipped", outcome.reason)
                break
            made += 1
    except (RequestError, UnavailableError) as error:
        problem = Outcome("failed", error.message)
    with context.database.write() as session:
        following = at if (continues or more_outcomes) and problem.reason is None else times.next(at)
        if schedules.claim(session, schedule, following) and problem.reason is not None:
            schedules.add_run(session, schedule, problem.state, reason=problem.reason, scheduled_at=at)
            log.warning("a watched folder has to wait", extra={"schedule_id": schedule.id, "state": problem.state})


def _new(context: AppContext, schedule: Schedule, source: Bucket, pattern: str) -> list[StoredObject]:
    """Return the objects of the folder with such a name that have no run. Raises RequestError, UnavailableError."""
    try:
        objects = source.objects(MAX_OBJECTS, recursive=False)
    except NotFoundError:
        return []
    first, *others = map(re.escape, pattern.split("*"))
    # Atomic: what stands between two stars is best found early, and names of clients shall cost no more than one look.
    between = "".join(f"(?>.*?{part})" for part in others[:-1])
    names = re.compile(f"{first}{between}{f'.*{others[-1]}' if others else ''}", re.DOTALL)
    with context.database.read() as session:
        known = schedules.watched(session, schedule.id)
    return [
        stored
        for stored in objects
        if names.fullmatch(stored.name) and not stored.name.endswith(OUTCOME) and _version(stored) not in known
    ]


def _name(stored: StoredObject) -> str:
    """Return an object's name as a text that databases can hold: a file system's may be any bytes."""
    return stored.name.encode(errors="surrogateescape").decode(errors="replace").replace("\0", "\ufffd")


def _version(stored: StoredObject) -> str:
    """Return what tells an object from others, and from itself with another content."""
    return sha256(f"{stored.path}\0{stored.etag}".encode(errors="surrogateescape")).hexdigest()


def _run_object(
    context: AppContext, schedule: Schedule, times: Cron, at: int, source: Bucket, stored: StoredObject
) -> Outcome:
    """Make a batch or job of an object, unless another tick has, or a limit of the project forbids it for now."""
    prepared: Draft | CheckedJob | Outcome
    name, prepared = _name(stored), Outcome("failed", "Its name is not UTF-8; rename it.")
    try:
        if name == stored.name:
            read = functools.partial(imports.one, context, schedule.project_id, source, stored)
            prepared = runs.draft(context, schedule, times, at, read, name)
    except UnavailableError as error:
        if error.code == "object_changed":
            return Outcome("skipped")  # it is still being written; what it will be is another version
        if error.code != imports.TOO_SLOW:
            raise
        prepared = Outcome("failed", error.message)  # it would be as slow again, and keep others from their turn
    with context.database.write() as session:
        current = schedules.get(session, schedule.project_id, schedule.id, lock=True)
        if current.version != schedule.version or schedules.has_watched(session, schedule.id, _version(stored)):
            return Outcome("skipped")
        outcome = runs.create(context, session, schedule, prepared)
        if outcome.is_limited:
            return outcome
        reason = None if outcome.reason is None else f"{name}: {outcome.reason}"
        made = schedules.add_run(session, schedule, outcome.state, reason=reason, **outcome.ids)
        session.add(
            WatchedObject(
                project_id=schedule.project_id,
                schedule_id=schedule.id,
                version=_version(stored),
                name=name,
                run_id=made.id,
            )
        )
    runs.announce(context, made, outcome)
    return outcome


def _write_outcomes(context: AppContext, schedule: Schedule, folder: str, ends_at: float) -> tuple[Outcome, bool]:
    """Write what became of objects, each as `NAME.outcome.json` beside it.

    Returns why one could not be written, and whether there may be more than the AT_ONCE that were looked at.
    """
    problem = Outcome("created")
    with context.database.read() as session:
        ended = schedules.ended_objects(session, schedule.id, AT_ONCE)
    target = OutputFolder(folder)
    with tempfile.TemporaryDirectory(prefix="batchyard-outcome-") as temporary:
        file = Path(temporary) / "outcome"
        for one in itertools.takewhile(lambda _: time.monotonic() < ends_at, ended):
            file.write_text(json.dumps(_document(one)) + "\n")
            try:
                target.put(file, f"{one.watched.name}{OUTCOME}")
            except UnavailableError as error:
                if getattr(error.__cause__, "errno", None) != errno.ENAMETOOLONG:
                    problem = Outcome("failed", error.message)
                    continue
                log.warning("the name of an outcome is too long", extra={"schedule_id": schedule.id})
            with context.database.write() as session:
                schedules.set_told(session, one.watched)
    return problem, len(ended) == AT_ONCE


def _document(ended: EndedObject) -> dict[str, Any]:
    work, run = ended.work, ended.run
    document: dict[str, Any] = {
        "object": ended.watched.name,
        "schedule_id": ended.watched.schedule_id,
        "status": run.state if work is None else work.status,
        "reason": run.reason,
    }
    if work is not None:
        kind = "batch_id" if isinstance(work, Batch) else "job_id"
        counts = {"total": work.total, "completed": work.completed, "failed": work.failed}
        document |= {kind: work.id, "request_counts" if isinstance(work, Batch) else "item_counts": counts}
    if isinstance(work, Batch):
        document["errors"] = work.errors
    return document
