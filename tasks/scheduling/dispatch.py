"""Dispatch: the one place that decides which segments run next, within the limits."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from sqlalchemy.orm import Session

from store import projects, segments, speeds
from tasks import messages
from tasks.context import AppContext
from tasks.scheduling import gpu_sharing
from tasks.scheduling.policy import Limits, RecentUsage, choose

log = logging.getLogger(__name__)


def run(context: AppContext) -> None:
    """Admit as many segments as the limits allow and ring for them.

    Counting and admitting is one serial transaction over all processes, so the limit holds however many workers
    and web servers call this at once.
    """
    total = context.settings.max_segments
    with context.database.read() as session:
        # Whoever frees a slot or plans a batch comes here after it, so what is true now needs no lock.
        if not segments.any_waits(session) or sum(segments.active(session).values()) >= total:
            return
    wanted = gpu_sharing.demands(context)
    with context.database.write(serial=True) as session:
        waiting, active = segments.waiting(session, total), segments.active(session)
        moment = time.time()
        concerned = {entry.project_id for entry in waiting} | {project_id for _, project_id in active}
        recent_usage = RecentUsage(speeds.recent_usage(session, concerned, moment), moment)
        allowed = limits(context, session)
        blocked = gpu_sharing.blocked(wanted, waiting)
        allowed = replace(allowed, models={**allowed.models, **dict.fromkeys(blocked, 0)})
        chosen = choose(waiting, active, allowed, recent_usage)
        seconds = context.settings.queue_seconds
        admitted = [(entry, segments.dispatch(session, entry.segment_id, seconds)) for entry in chosen]
    for entry, epoch in admitted:
        if epoch is not None:
            messages.segment(entry.segment_id, epoch, entry.batch_id, entry.number)
            ids = {"batch_id": entry.batch_id, "segment_id": entry.segment_id, "epoch": epoch}
            log.info("dispatched", extra=ids)


def limits(context: AppContext, session: Session) -> Limits:
    """The limits in force: of the deployment, of each model that is served, and of each project that has one."""
    return Limits(
        total=context.settings.max_segments,
        models={name: spec.max_segments for name, spec in context.models.items()},
        projects=projects.max_segments(session),
        min_share=context.settings.fair_share,
    )
