"""Segments: the requests of one without an answer go through the engine, and answers are stored as they come."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchyard import output_lines
from batchyard.backoff import Backoff
from batchyard.errors import EngineError, EngineStartError, GpuBusy, LeaseLost, Stopped, UnavailableError
from batchyard.models import ModelSpec, is_derived
from inference.deaths import EngineDeath
from inference.engines.registry import capabilities
from store import batches, holds, segments
from store.formats import chunks, plan
from tasks.context import AppContext
from tasks.execution import engine_status, progress
from tasks.execution.chunk_writer import ChunkWriter
from tasks.execution.deduplication import Duplicates
from tasks.execution.result_cache import TOKENS, Cache
from tasks.execution.running import RUNNING
from tasks.heartbeat import Heartbeat
from tasks.scheduling import gpu_sharing
from tasks.scheduling.dispatch import Drain
from tasks.scheduling.throughput import ThroughputMeter

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
CLUSTER_BEATS = 3
BACKOFF = Backoff(first=5.0)


def run(context: AppContext, segment_id: int, epoch: int, holder: str) -> bool:
    """Run a dispatched segment. Answers that were appended stay, however it ends. False if the message is old."""
    with context.database.write() as session:
        segment = segments.start(session, segment_id, epoch, holder, context.settings.lease_seconds)
    if segment is None:
        log.info("old message", extra={"segment_id": segment_id, "epoch": epoch})
        return False
    ids = {"batch_id": segment.batch_id, "segment_id": segment_id, "epoch": epoch}
    log.info("segment started", extra=ids)
    deaths = _Deaths(context, segment)
    try:
        _hold(context, segment, deaths)
    except LeaseLost as error:
        log.warning("segment lost: %s", error, extra=ids)
    except GpuBusy as error:
        log.info("segment waits: %s", error, extra=ids)
        _fail(context, segment, error.message, counted=False)
        gpu_sharing.record_demand(context, segment.model["name"], segment.due_at, error.holders)
    except EngineStartError as error:
        log.error("model on hold: %s", error, extra={**ids, "model": segment.model["name"]})
        with context.database.write() as session:
            segments.fail(session, segment, error.message, 0.0, counted=False)
            holds.hold(session, segment.model["name"], error.message)
    except (EngineError, UnavailableError) as error:
        log.error("segment failed: %s", error, extra=ids)
        _fail(context, segment, error.message, counted=isinstance(error, EngineError) and not _ray_is_away())
    except Exception as error:
        # Unexpected error: the task logs its traceback. It counts as an attempt, so that it is not retried for ever.
        _fail(context, segment, f"{type(error).__name__}: {error}", counted=not _ray_is_away())
        raise
    else:
        log.info("segment ended", extra=ids)
    deaths.close()
    return True


def _fail(context: AppContext, segment: segments.SegmentLease, error: str, *, counted: bool) -> None:
    with context.database.write() as session:
        segments.fail(session, segment, error, BACKOFF.seconds(segment.attempts + 1), counted=counted)
    progress.count(context, segment.model["name"], {"retries": 1})


def _ray_is_away() -> bool:
    """True if the Ray cluster that this process is connected to does not answer, which is not the engine's fault."""
    # Another thread may be importing Ray now.
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return False
    from inference.ray import cluster

    return not cluster.alive()


class _Deaths:
    """The deaths of engines in a segment's run: logged, counted, and recorded for its batch and its model."""

    def __init__(self, context: AppContext, segment: segments.SegmentLease) -> None:
        self._context = context
        self._segment = segment
        self._unrecorded: list[EngineDeath] = []
        self._any = False

    def add(self, death: EngineDeath) -> None:
        """Record a death. It is kept while the database is away, since the run need not end for that."""
        facts = {name: value for name, value in asdict(death).items() if name != "engine"}
        ids = {"batch_id": self._segment.batch_id, "job_id": self._segment.job_id, "segment_id": self._segment.lease.id}
        log.error("engine died: %s", death.reason, extra={**ids, **facts})
        self._any = True
        self._unrecorded.append(death)
        self._record()

    def close(self) -> None:
        """Record what is left, and hold the model if its engines die and answer nothing.

        Nobody will mend what a job has derived for itself: its requests fail after some attempts.
        """
        self._record()
        model = self._segment.model["name"]
        if not self._any or is_derived(model):
            return
        try:
            with self._context.database.write() as session:
                hold = holds.hold_after_deaths(session, model)
        except UnavailableError as error:
            log.warning("model not held: %s", error, extra={"model": model})
            return
        if hold is not None:
            log.error("model on hold: %s", hold.reason, extra={"batch_id": self._segment.batch_id, "model": model})

    def _record(self) -> None:
        while self._unrecorded:
            facts = asdict(self._unrecorded[0])
            try:
                with self._context.database.write() as session:
                    is_new = holds.record_death(session, self._segment.batch_id, next_=facts.pop("next"), **facts)
            except UnavailableError as error:
                log.warning("death of an engine not recorded: %s", error, extra={"batch_id": self._segment.batch_id})
                return
            death = self._unrecorded.pop(0)
            if is_new:
                progress.count(self._context, death.model, {"engine_deaths": 1})


class _ClusterWatch:
    """Watches the Ray cluster that this process is connected to, for all its segments."""

    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._looked_at = 0.0
        self._away = 0

    def lost(self) -> bool:
        """Return True if the cluster was away, or another one, at CLUSTER_BEATS looks in a row.

        Each segment asks at its beats. One of them looks, at most once a beat, and the others wait for none.
        """
        if self._looking.acquire(blocking=False):
            try:
                if time.monotonic() - self._looked_at >= BEAT_SECONDS:
                    self._away = self._away + 1 if _ray_is_away() else 0
                    self._looked_at = time.monotonic()
            finally:
                self._looking.release()
        return self._away >= CLUSTER_BEATS


_watch = _ClusterWatch()
_leaving = threading.Lock()


def leave(context: AppContext, reason: str) -> None:
    """Give this process's segments back and end it. Its pool or its supervisor starts another one.

    A call into a Ray cluster that is gone waits for ever and cannot be interrupted.
    """
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


class _Pause:
    """The pause of a segment's batch: its run sends no more requests, and ends when those in the engine are answered.

    Attributes:
        requested: the batch is paused, or was since the segment started.
        close: lets the run send nothing more; False if it has to be stopped, as one that has not begun.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.close: Callable[[], bool] = lambda: False

    def request(self) -> bool:
        """Request it, at each beat, since another replica may join the run. Return what `close` returns."""
        self.requested.set()
        return self.close()


def _hold(context: AppContext, segment: segments.SegmentLease, deaths: _Deaths) -> None:
    pause = _Pause()

    def beat() -> bool:
        with context.database.write() as session:
            wanted = segments.renew(session, segment, context.settings.lease_seconds)
        if _watch.lost():
            leave(context, "the Ray cluster went away")
        return wanted == "run" or (wanted == "pause" and pause.request())

    with Heartbeat(beat, BEAT_SECONDS) as heartbeat, RUNNING.add(segment, heartbeat.stopped):
        engine = _answer(context, segment, heartbeat.stopped, pause, deaths)
    over = heartbeat.stopped.is_set() or pause.requested.is_set()
    with context.database.write() as session:
        segments.end(session, segment, done=not over, engine=engine)


def _answer(
    context: AppContext, segment: segments.SegmentLease, stopped: threading.Event, pause: _Pause, deaths: _Deaths
) -> dict[str, str] | None:
    # These import Ray, which only a process that runs segments needs.
    from inference import pipeline
    from inference.ray import cluster
    from inference.residents import directory

    spec = _configuration(context, segment)
    rows = _unanswered(context, segment)
    if rows.num_rows == 0:
        return None
    duplicates, to_run = Duplicates(rows), rows.filter(pc.is_null(rows["same_as"]))
    error = _no_engine(context, segment)
    if error is not None:
        _refuse(context, segment, stopped, rows, *error)
        return None
    meter = ThroughputMeter(segment, spec)
    terms: dict[str, Any] = {
        "stopped": stopped,
        "request_timeout": float(context.settings.request_timeout),
        "start_timeout": float(context.settings.engine_start_timeout),
        "idle_seconds": float(context.settings.engine_idle_seconds),
    }
    cache = Cache(context, segment, spec.config_sha256)
    drain = Drain(context, spec.name, rows.num_rows)
    writer = ChunkWriter(context, segment, stopped, meter, cache, drain)

    def died(death: EngineDeath) -> None:
        writer.flush()  # answers from before a death are none after it
        deaths.add(death)

    terms["on_death"] = died
    engine: dict[str, str] | None = None
    tables: Generator[pa.Table] | None = None
    published_at = time.monotonic()
    try:
        with meter.excluded(), engine_status.starting(context, spec.name):
            cluster.connect(context.settings.ray_address, stopped)
            started = pipeline.start(spec, **terms)
        engine = started.versions
        if meter.started:
            engine_status.publish(context, directory.states(timeout=1.0))
        gpu_sharing.clear_demand(context, spec.name)
        if segment.held is not None:
            with context.database.write() as session:
                holds.engine_started(session, spec.name)
        for table in cache.find(to_run, engine):
            for joined in duplicates.join(table, shared=True):
                writer.add(joined)
            to_run = _without(to_run, table["line"])
        writer.flush()
        meter.expect(to_run.num_rows, started.in_flight * spec.replicas)
        key = f"{segment.batch_id}/{segment.number}"
        requests = to_run.select(pipeline.REQUESTS)
        pause.close = functools.partial(pipeline.close, spec, key, terms["request_timeout"])
        terms["paused"] = pause.requested
        tables = answers = pipeline.run(spec, segment.endpoint, requests, idempotency_key=key, **terms)
        starts = capabilities(spec.engine).starts_each_run
        while not stopped.is_set():
            with meter.excluded() if starts else nullcontext():
                table = next(answers, None)
            if table is None:
                break
            starts = False
            for joined in duplicates.join(table):
                writer.add(joined)
            if time.monotonic() - published_at >= engine_status.INTERVAL_SECONDS:
                published_at = time.monotonic()
                engine_status.publish(context, directory.states(timeout=1.0))
    except EngineStartError as failure:
        if engine is not None or not is_derived(spec.name):
            raise
        # Nobody will mend what a job has derived for itself, so its requests need not wait for that.
        log.warning("engine of a derived model not started: %s", failure, extra={"model": spec.name})
        with context.database.write() as session:
            holds.release(session, spec.name)
        _refuse(context, segment, stopped, rows, "engine_unavailable", failure.message)
    except Stopped:
        log.info("segment stopped", extra={"batch_id": segment.batch_id, "segment_id": segment.lease.id})
    finally:
        try:
            writer.flush(ends=True)
        finally:
            if tables is not None:
                tables.close()
    if not stopped.is_set():
        engine_status.publish(context, directory.states(timeout=1.0))
    return engine


def _unanswered(context: AppContext, segment: segments.SegmentLease) -> pa.Table:
    rows = plan.segment(context.artifacts, segment.plan_sha256, segment.row_group)
    for sha256 in segment.chunks:
        for answered in chunks.read(context.artifacts, sha256, ["line"]):
            rows = _without(rows, answered["line"])
    return rows


def _without(rows: pa.Table, lines: pa.ChunkedArray) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["line"], lines.combine_chunks())))


def _configuration(context: AppContext, segment: segments.SegmentLease) -> ModelSpec:
    """Return the model's configuration.

    A batch keeps the one it was validated with. If its model is on hold and has answered nothing of the
    batch, the deployment's present one takes its place, since that is where the fault was mended; the price stays.
    """
    spec, current = ModelSpec.model_validate(segment.model), context.models.get(segment.model["name"])
    if segment.held is None or current is None or current.config_sha256 == spec.config_sha256:
        return spec
    with context.database.write() as session:
        if segments.answered(session, segment.batch_id, spec.name):
            return spec
        current = current.model_copy(update={"price": spec.price})
        batches.set_model(session, segment.batch_id, spec.name, current.model_dump(mode="json"))
    log.info("batch takes the model's present configuration", extra={"batch_id": segment.batch_id, "model": spec.name})
    return current


def _no_engine(context: AppContext, segment: segments.SegmentLease) -> tuple[str, str] | None:
    """Return the code and the message of why no engine will answer the segment's requests; None if one may."""
    if segment.attempts >= context.settings.segment_attempts:
        message = f"The engine could not run this request in {segment.attempts} attempts: {segment.error}"
        return "engine_unavailable", message
    if segment.held is None or not segment.last_chance:
        return None
    if segment.held != holds.UNSERVED:
        message = f"The model could not run before the completion window ended: {segment.held}"
        return "engine_unavailable", message
    if segment.model["name"] not in context.models:
        message = f"The model '{segment.model['name']}' was removed from this deployment before it ran this request."
        return "model_not_found", message
    return None


def _refuse(
    context: AppContext, segment: segments.SegmentLease, stopped: threading.Event, rows: pa.Table, *error: str
) -> None:
    """Append an error line with this code and message for each of the requests."""
    writer = ChunkWriter(context, segment, stopped)  # no meter: no engine answers these
    writer.add(_engine_error(rows, *error))
    writer.flush()


def _engine_error(rows: pa.Table, code: str, message: str) -> pa.Table:
    """Return error lines for requests that no engine will answer."""
    answers = output_lines.unanswered(rows["line"].to_pylist(), rows["custom_id"].to_pylist(), code, message)
    none, zeros = [False] * rows.num_rows, pa.array([0] * rows.num_rows, pa.int64())
    columns = {"line": rows["line"], "ok": none, "answer": answers, **dict.fromkeys(TOKENS, zeros), "shared": none}
    return pa.table(columns | {"seconds": pa.nulls(rows.num_rows, pa.float64())})
