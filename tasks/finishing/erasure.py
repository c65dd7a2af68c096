"""Erasure: batches and jobs that somebody deletes or that a project keeps no longer, projects, and their content.

Content is stored before its record. So what was erased is removed GRACE_SECONDS later, if no record refers to it then
and nobody has stored it again since.
"""

import logging
import time
from collections import Counter

from sqlalchemy.exc import IntegrityError

from batchyard.errors import ConflictError, NotFoundError
from store import cache
from store.batches import BATCHES
from store.deletion import erasure, garbage, retention
from store.jobs.lifecycle import JOBS
from store.keys import Principal
from store.records import Project
from store.work.lifecycle import Lifecycle, Record
from tasks.context import AppContext

log = logging.getLogger(__name__)

GRACE_SECONDS = 60
"""Content is removed so long after it was erased, or after `BATCHYARD_GARBAGE_GRACE_SECONDS` if that is less.

No transaction waits for as long between storing content and recording it.
"""
TICK_SECONDS = 10.0
"""Longest that one tick deletes rows, or content; the next one goes on."""
POLICY = "zero retention"
"""Who deletes what a project keeps no longer, for the audit."""


def delete(context: AppContext, by: Principal, kind: Lifecycle[Record], work_id: str) -> None:
    """Delete a batch or a job that has ended, with all that it had. Raises as `store.deletion.erasure.family`."""
    with context.database.write() as session:
        members = erasure.family(session, kind, by.project_id, work_id)
    more = True
    while more:  # a few at a time: a batch may have many thousands
        with context.database.write() as session:
            more = cache.forget(session, members.batch_ids) == cache.CHUNK
    with context.database.write() as session:
        erasure.delete_work(session, by, kind, work_id)
    log.info("erased", extra={f"{kind.noun}_id": work_id, "by": by.key_id})


def tick(context: AppContext) -> None:
    """Remove erased content, and delete what projects keep no longer, and projects: for TICK_SECONDS each."""
    _remove_content(context, time.monotonic() + TICK_SECONDS)
    with context.database.read() as session:
        limited = erasure.limited(session)
    for project in limited:
        ends_at = time.monotonic() + TICK_SECONDS / len(limited)  # no project waits for a large one
        minutes = 0 if project.erasing_at is not None else project.zero_retention_minutes or 0
        before = time.time() - 60 * minutes
        by = Principal(project.id, False, POLICY, POLICY)
        _delete_all(context, by, JOBS, before, ends_at)
        _delete_all(context, by, BATCHES, before, ends_at)
        deleted = retention.ROWS
        while deleted == retention.ROWS and time.monotonic() < ends_at:
            with context.database.write() as session:
                deleted = erasure.delete_unused_files(session, project.id, before)
        if project.erasing_at is not None:
            _cancel_all(context, JOBS, project.id)
            _cancel_all(context, BATCHES, project.id)
            _delete_project(context, project, ends_at)


def _delete_all(context: AppContext, by: Principal, kind: Lifecycle[Record], before: float, ends_at: float) -> None:
    after = ""
    while time.monotonic() < ends_at:
        with context.database.read() as session:
            ids = erasure.ended(session, kind, by.project_id, before, after)
        for work_id in ids:
            try:
                delete(context, by, kind, work_id)
            except (ConflictError, NotFoundError) as error:  # the next tick tries again
                log.debug("not erased yet: %s", error, extra={f"{kind.noun}_id": work_id})
            if time.monotonic() >= ends_at:
                return
        if len(ids) < retention.BATCHES:
            return
        after = ids[-1]


def _cancel_all(context: AppContext, kind: Lifecycle[Record], project_id: str) -> None:
    with context.database.read() as session:
        ids = erasure.running(session, kind, project_id)
    for work_id in ids:
        try:
            with context.database.write() as session:
                kind.cancel(session, project_id, work_id)
        except (ConflictError, NotFoundError) as error:  # it has ended meanwhile
            log.debug("not cancelled: %s", error, extra={f"{kind.noun}_id": work_id})


def _delete_project(context: AppContext, project: Project, ends_at: float) -> None:
    """Delete a project that has no batches and no jobs any more; otherwise a later tick does it."""
    with context.database.read() as session:
        if erasure.has_work(session, project.id):
            return
    rows: Counter[str] = Counter()
    for old in erasure.of_project(project.id):
        number = retention.ROWS
        while number == retention.ROWS:
            if time.monotonic() >= ends_at:
                return
            with context.database.read() as session:
                keys = retention.find(session, old)
            number = len(keys)
            try:
                with context.database.write() as session:
                    rows[old.record.__tablename__] += erasure.delete_rows(session, old, keys) if keys else 0
            except IntegrityError:  # a request that began before the project's end has added something
                log.warning("project not erased yet", extra={"project_id": project.id})
                return
    log.info("project erased", extra={"project_id": project.id, "rows": dict(rows)})


def _remove_content(context: AppContext, ends_at: float) -> None:
    grace = min(GRACE_SECONDS, context.settings.garbage_grace_seconds)
    before, after, removed = time.time() - grace, "", 0
    while time.monotonic() < ends_at:
        with context.database.read() as session:
            names = erasure.content(session, before, after)
        if not names:
            break
        after = names[-1]
        now = time.time()
        with context.database.read() as session:
            referenced = garbage.referenced(session, names, now, now - context.settings.results_seconds)
        sizes = {name: context.artifacts.collect(name[:2], name, grace) for name in names if name not in referenced}
        gone = {name for name, size in sizes.items() if size is not None}
        removed += len(gone)
        if not context.database.truncate_log():
            continue  # a reader needs it: a later tick empties it, and forgets these
        done = referenced | gone
        with context.database.write() as session:
            erasure.forget_content(session, done, before)
    if removed:
        log.info("erased content removed", extra={"artifacts": removed})
