"""Forecasts of jobs: the ends of their last batches and last requests, and which jobs are late."""

import logging
from collections.abc import Callable, Mapping, Sequence, Set

from sqlalchemy.orm import Session

from store import queue
from store.jobs import lifecycle
from store.queue import BacklogEntry
from store.records import Batch, Job
from store.speeds import Throughput
from tasks.context import AppContext
from tasks.scheduling import costs, deadlines, forecast
from tasks.scheduling.forecast import Forecast

log = logging.getLogger(__name__)

SEGMENT_REQUESTS = 500
"""Requests in a segment of a job, of those that no batch has yet: nobody knows how they will be cut."""


def backlog(session: Session) -> list[BacklogEntry]:
    """Return the requests that jobs still have outside batches, as pending segments."""
    return [entry for job in queue.jobs(session) for entry in queue.backlog_of_job(job, SEGMENT_REQUESTS)]


def update(
    context: AppContext,
    batches: Sequence[Batch],
    ends: Callable[[], Mapping[str, Forecast]],
    throughputs: Mapping[tuple[str, str], Throughput],
    waiting: Set[str],
    now: float,
) -> dict[str, Forecast]:
    with context.database.read() as session:
        jobs = queue.jobs(session)
    if not jobs:
        return {}
    forecasts = _forecasts(jobs, batches, ends(), throughputs, now)
    waiting = waiting | {batch.job_id for batch in batches if batch.job_id is not None and batch.id in waiting}
    for job in jobs:
        held = job.id in waiting or job.attempt_error is not None
        ended_share = (job.completed + job.failed + job.stuck) / job.total if job.total else 0.0
        due, expected = deadlines.deadline(job), forecasts.get(job.id)
        state = deadlines.sla(now, job.created_at, due, ended_share, expected.at if expected else None, held=held)
        if state != job.sla:
            at = None if expected is None else round(expected.at)
            with context.database.write() as session:
                lifecycle.set_sla(session, job, state, deadline=due, done_at=at)
            log.info("job is %s", state, extra={"job_id": job.id, "sla": state, "deadline": due, "done_at": at})
    return forecasts


def _forecasts(
    jobs: Sequence[Job],
    batches: Sequence[Batch],
    ends: Mapping[str, Forecast],
    throughputs: Mapping[tuple[str, str], Throughput],
    now: float,
) -> dict[str, Forecast]:
    """Return the forecasts of jobs of which all is known."""
    forecasts = {}
    for job in jobs:
        waits = job.waiting_for_verdict or job.paused_at is not None
        if waits or job.ahead is None or job.ahead["requests"] is None:
            continue
        parts = [
            batch.id for batch in batches if batch.job_id == job.id and batch.completed + batch.failed < batch.total
        ]
        parts += [job.id] if sum(job.ahead["requests"].values()) >= 1 else []
        if parts and all(part in ends for part in parts):
            part_ends = [ends[part] for part in parts]
            latest = max(part_ends, key=lambda end: end.at)
            end = Forecast(latest.at, max(end.earliest for end in part_ends), max(end.latest for end in part_ends))
            measured = [speed for model in job.models if (speed := costs.throughput_of(model, "decode", throughputs))]
            for throughput in measured:
                end = forecast.with_chains(end, throughput, job.ahead["chains"], job.ahead["unbegun"], now)
            forecasts[job.id] = end
    return forecasts
