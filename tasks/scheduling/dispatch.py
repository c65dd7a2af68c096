"""Dispatch: starts pending segments within the limits, in the order of the policy."""

import logging
import math
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cached_property

from sqlalchemy.orm import Session

from batchyard import queues
from batchyard.errors import UnavailableError
from inference.engines.registry import capabilities
from store import batches, holds, projects, segments, speeds
from store.segments import PendingSegment
from tasks import messages
from tasks.context import AppContext
from tasks.port import running_models
from tasks.scheduling import gpu_sharing
from tasks.scheduling.gpu_sharing import EngineDemand
from tasks.scheduling.policy import Limits, RecentUsage, choose

log = logging.getLogger(__name__)

DRAIN_SECONDS = 3.0
"""A segment drains for at least so long: the next one needs this time until the engine has its first requests."""
ENGINE_FILLS = 2
"""A segment drains once its requests are fewer than so many times what its engine holds."""
DRAIN_REQUESTS = 4_000
"""A fast engine's segment does not drain before: each segment that starts meanwhile may take Ray a process of its own,
and these cost more than such an engine loses."""


def run(context: AppContext) -> None:
    """Dispatch segments within the limits, in one serial transaction, and send their messages."""
    with context.database.read() as session:
        if not segments.any_waits(session):
            return
    demands = gpu_sharing.demands(context)
    with context.database.write(serial=True) as session:
        seconds = context.settings.queue_seconds
        admitted = [
            (entry, segments.dispatch(session, entry.segment_id, seconds))
            for entry in _select(context, session, demands)
        ]
        names = batches.titles(session, {entry.batch_id for entry, _ in admitted})
    for entry, epoch in admitted:
        if epoch is not None:
            messages.segment(entry.segment_id, epoch, entry.batch_id, entry.number, names[entry.batch_id])
            ids = {"batch_id": entry.batch_id, "segment_id": entry.segment_id, "epoch": epoch}
            log.info("dispatched", extra=ids)


class Drain:
    """What is left of a running segment. While it drains, each result chunk makes room for other segments."""

    def __init__(self, context: AppContext, model: str, unanswered: int) -> None:
        self._context = context
        self._model = model
        self._unanswered = unanswered

    @cached_property
    def _fill(self) -> float:
        with self._context.database.read() as session:
            return limits(self._context, session).fills.get(self._model, 0.0)

    def appended(self, requests: int) -> None:
        """Count appended answers, and dispatch if the segment drains."""
        self._unanswered -= requests
        try:
            if 0 < self._unanswered < self._fill:
                run(self._context)
        except UnavailableError as error:  # housekeeping dispatches when the database is back
            log.warning("nothing dispatched: %s", error)


def _select(context: AppContext, session: Session, demands: Iterable[EngineDemand]) -> list[PendingSegment]:
    active, allowed = segments.active(session), limits(context, session)
    if allowed.reached(sum(allowed.load(entry) for entry in active if not entry.background), len(active)):
        return []
    waiting = segments.waiting(session, int(allowed.running))
    # Of models that are not served any more, only what can wait no longer is waiting: it gets its error lines.
    unserved = dict.fromkeys(holds.unserved(session), allowed.total)
    blocked = gpu_sharing.blocked(demands, waiting)
    allowed = replace(
        allowed,
        models={**unserved, **allowed.models, **dict.fromkeys(blocked, 0)},
        engines={**unserved, **allowed.engines},
    )
    project_ids = {entry.project_id for entry in (*waiting, *active)}
    return choose(waiting, active, allowed, recent_usage(session, project_ids, time.time()))


def makes_way(context: AppContext, model: str) -> bool:
    """True if a running background segment has to give its place to other work."""
    with context.database.read() as session:
        active, allowed = segments.active(session), limits(context, session)
    others = [entry for entry in active if not entry.background]
    of_model = sum(allowed.load(entry) for entry in others if entry.model == model)
    if of_model >= allowed.engines.get(model, 1) or allowed.reached(sum(map(allowed.load, others)), len(others)):
        return True
    return any(model in demand.holders and demand.due_at < math.inf for demand in gpu_sharing.demands(context))


def recent_usage(session: Session, project_ids: Collection[str], now: float) -> RecentUsage:
    return RecentUsage(speeds.recent_usage(session, project_ids, now), now)


def limits(context: AppContext, session: Session) -> Limits:
    total = context.settings.max_segments
    specs = running_models(context, session)
    # Each run of a job has engines of its own, which are full until its end.
    jobs = {name for name, spec in specs.items() if capabilities(spec.engine).starts_each_run}
    # The unanswered requests of each model below which its engine may run dry.
    fills: dict[str, float] = {name: ENGINE_FILLS * spec.in_flight() * spec.replicas for name, spec in specs.items()}
    for (name, _), throughput in speeds.throughputs(session, specs).items():
        requests_per_second = throughput.work_per_second / throughput.work_per_request
        fills[name] = max(fills[name], min(DRAIN_SECONDS * requests_per_second, DRAIN_REQUESTS))
    return Limits(
        total=total,
        models={name: spec.max_segments for name, spec in specs.items()},
        projects=projects.max_segments(session),
        min_share=context.settings.fair_share,
        fills={name: fill for name, fill in fills.items() if name not in jobs},
        engines={name: specs[name].max_segments for name in jobs},
        running=queues.segment_threads(total),
    )
