"""Dispatch: starts pending segments within the limits, in the order of the policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import replace

from sqlalchemy.orm import Session

from store import holds, projects, segments, speeds
from tasks import messages
from tasks.context import AppContext
from tasks.scheduling import gpu_sharing
from tasks.scheduling.policy import Limits, RecentUsage, choose

log = logging.getLogger(__name__)


def run(context: AppContext) -> None:
    """Dispatch as many segments as the limits allow and send their messages.

    One serial transaction counts and dispatches, so the limits hold when many processes call this at once.
    """
    total = context.settings.max_segments
    with context.database.read() as session:
        # Every process that frees a slot or plans a batch calls this afterwards, so this check needs no lock.
        if not segments.any_waits(session) or sum(segments.active(session).values()) >= total:
            return
    demands = gpu_sharing.demands(context)
    with context.database.write(serial=True) as session:
        waiting, active = segments.waiting(session, total), segments.active(session)
        project_ids = {entry.project_id for entry in waiting} | {project_id for _, project_id in active}
        allowed = limits(context, session)
        # Of models that are not served any more, only what can wait no longer is waiting: it gets its error lines.
        unserved = dict.fromkeys(holds.unserved(session), total)
        blocked = gpu_sharing.blocked(demands, waiting)
        allowed = replace(allowed, models={**unserved, **allowed.models, **dict.fromkeys(blocked, 0)})
        selection = choose(waiting, active, allowed, recent_usage(session, project_ids, time.time()))
        seconds = context.settings.queue_seconds
        admitted = [(entry, segments.dispatch(session, entry.segment_id, seconds)) for entry in selection]
    for entry, epoch in admitted:
        if epoch is not None:
            messages.segment(entry.segment_id, epoch, entry.batch_id, entry.number)
            ids = {"batch_id": entry.batch_id, "segment_id": entry.segment_id, "epoch": epoch}
            log.info("dispatched", extra=ids)


def recent_usage(session: Session, project_ids: Collection[str], now: float) -> RecentUsage:
    """Return the recent usage of these projects, as of `now` (Unix seconds)."""
    return RecentUsage(speeds.recent_usage(session, project_ids, now), now)


def limits(context: AppContext, session: Session) -> Limits:
    """Return the limits of the deployment, of each served model, and of each project that has one."""
    return Limits(
        total=context.settings.max_segments,
        models={name: spec.max_segments for name, spec in context.models.items()},
        projects=projects.max_segments(session),
        min_share=context.settings.fair_share,
    )
