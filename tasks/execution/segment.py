"""Segments: one is run under its lease, and given back, failed or ended as its run ends."""

import logging
import os
import threading
from contextlib import suppress

from batchyard.backoff import Backoff
from batchyard.errors import EngineError, EngineStartError, GpuBusy, LeaseLost, UnavailableError
from batchyard.telemetry import spans, traceparents
from batchyard.telemetry.spans import Span
from store import holds, segments
from tasks.context import AppContext
from tasks.execution import answering, tally
from tasks.execution.answering import Pause
from tasks.execution.cluster_watch import WATCH, ray_is_away
from tasks.execution.deaths import DeathLog
from tasks.execution.running import RUNNING
from tasks.heartbeat import Heartbeat
from tasks.scheduling import dispatch, gpu_sharing

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
BACKOFF = Backoff(first=5.0)


def run(context: AppContext, segment_id: int, epoch: int, holder: str) -> bool:
    """Run a dispatched segment. Answers that were appended stay, however it ends. False if the message is old."""
    with context.database.write() as session:
        segment = segments.start(session, segment_id, epoch, holder, context.settings.lease_seconds)
    if segment is None:
        log.info("old message", extra={"segment_id": segment_id, "epoch": epoch})
        return False
    ids: dict[str, object] = {"batch_id": segment.batch_id, "segment_id": segment_id, "epoch": epoch}
    log.info("segment started", extra=ids)
    deaths = DeathLog(context, segment)
    with spans.span("segment", traceparents.of_work(segment.batch_id, segment.traceparent)) as span:
        span.set(
            {
                "batchyard.segment.number": segment.number,
                "batchyard.segment.epoch": epoch,
                "batchyard.segment.requests": segment.requests,
                "gen_ai.request.model": segment.model["name"],
            }
        )
        _attempt(context, segment, deaths, span, ids)
    deaths.close()
    return True


def _attempt(
    context: AppContext, segment: segments.SegmentLease, deaths: DeathLog, span: Span, ids: dict[str, object]
) -> None:
    """Answer a segment's requests, and release it whatever happens. Raises what nobody expects."""
    try:
        _hold(context, segment, deaths)
    except LeaseLost as error:
        span.fail(error)
        log.warning("segment lost: %s", error, extra=ids)
    except GpuBusy as error:
        span.fail(error)
        log.info("segment waits: %s", error, extra=ids)
        _fail(context, segment, error.message, counted=False, shown=False)
        gpu_sharing.record_demand(context, segment.model["name"], segment.due_at, error.holders)
    except EngineStartError as error:
        span.fail(error)
        log.error("model on hold: %s", error, extra={**ids, "model": segment.model["name"]})
        with context.database.write() as session:
            segments.fail(session, segment, error.message, 0.0, counted=False)
            holds.hold(session, segment.model["name"], error.message)
    except (EngineError, UnavailableError) as error:
        span.fail(error)
        log.error("segment failed: %s", error, extra=ids)
        _fail(context, segment, error.message, counted=isinstance(error, EngineError) and not ray_is_away())
    except Exception as error:
        # Unexpected error: the task logs its traceback. It counts as an attempt, so that it is not retried for ever.
        _fail(context, segment, f"{type(error).__name__}: {error}", counted=not ray_is_away())
        raise
    else:
        log.info("segment ended", extra=ids)


def _fail(
    context: AppContext, segment: segments.SegmentLease, error: str, *, counted: bool, shown: bool = True
) -> None:
    """Release a segment after a failure. One that is no attempt is `shown` as what keeps its batch."""
    with context.database.write() as session:
        segments.fail(session, segment, error, BACKOFF.seconds(segment.attempts + 1), counted=counted)
        if shown and not counted:
            segments.hold_up(session, segment, error)
    tally.count(context, segment.model["name"], {"retries": 1})


_leaving = threading.Lock()


def leave(context: AppContext, reason: str) -> None:
    """Give this process's segments back and end it: a call into a Ray cluster that is gone waits for ever."""
    with _leaving:
        lost = RUNNING.segments()
        ids = [segment.lease.id for segment in lost]
        log.error("%s; this process ends", reason, extra={"segment_ids": ids})
        try:
            for segment in lost:
                with suppress(LeaseLost):
                    _fail(context, segment, reason, counted=False)
        finally:
            os._exit(1)


def _hold(context: AppContext, segment: segments.SegmentLease, deaths: DeathLog) -> None:
    pause = Pause()

    def beat() -> bool:
        with context.database.write() as session:
            wanted = segments.renew(session, segment, context.settings.lease_seconds)
        if WATCH.lost():
            leave(context, "the Ray cluster went away")
        if wanted == "make_way":
            wanted = "pause" if dispatch.makes_way(context, segment.model["name"]) else "run"
        return wanted == "run" or (wanted == "pause" and pause.request())

    with Heartbeat(beat, BEAT_SECONDS) as heartbeat, RUNNING.add(segment, heartbeat.stopped):
        engine = answering.run(context, segment, heartbeat.stopped, pause, deaths)
    over = heartbeat.stopped.is_set() or pause.requested.is_set()
    with context.database.write() as session:
        segments.end(session, segment, done=not over, engine=engine)
