"""Answering: a segment's requests without an answer go through the engine, and answers are stored as they come."""

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from batchyard import json_lines
from batchyard.endpoints import forms, output_lines
from batchyard.errors import EngineStartError, Stopped
from batchyard.failures import accounts
from batchyard.models import ModelSpec, is_derived
from inference.answers import Death
from inference.engines.registry import capabilities
from store import batches, holds, segments
from store.formats import chunks, plan
from tasks.context import AppContext
from tasks.execution import engine_status
from tasks.execution.chunk_writer import ChunkWriter
from tasks.execution.deaths import DeathLog
from tasks.execution.deduplication import Duplicates
from tasks.execution.result_cache import TOKENS, Cache
from tasks.port import port
from tasks.scheduling import gpu_sharing
from tasks.scheduling.dispatch import Drain
from tasks.scheduling.throughput import ThroughputMeter

log = logging.getLogger(__name__)

REFUSED_REQUESTS = 20
"""A model goes on hold if its endpoints refuse the key, the quota or the bill of so many requests and answer none."""


CHECK_SECONDS = 30.0
"""Seconds of CPU that checks of the form of a segment's answers may take: the schemas are clients'."""


class Pause:
    """The pause of a segment's batch: its run sends nothing more, and ends with the last reply.

    `requested`: the batch is paused, or was since the segment started. `close` lets the run send nothing more; False if
    it has to be stopped, as one that has not begun.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.close: Callable[[], bool] = lambda: False

    def request(self) -> bool:
        """Request it, at each beat, since another replica may join the run. Return what `close` returns."""
        self.requested.set()
        return self.close()


def run(
    context: AppContext, segment: segments.SegmentLease, stopped: threading.Event, pause: Pause, deaths: DeathLog
) -> dict[str, str] | None:
    """Store an answer to each request that has none, until the segment is stopped or paused.

    Return the versions behind the answers; None if no engine ran. Raises LeaseLost; GpuBusy; and as
    `inference.pipeline.run`.
    """
    spec, rows = _configuration(context, segment), _unanswered(context, segment)
    if rows.num_rows == 0:
        return None
    refusal = refusal_of(context, segment)
    if refusal is not None:
        refuse(context, segment, stopped, rows, *refusal)
        return None
    return _Answering(context, segment, stopped, pause, deaths, spec, rows).run()


@dataclass
class _Answering:
    """One attempt at a segment's requests. Its methods import Ray, which only a process that runs segments needs."""

    context: AppContext
    segment: segments.SegmentLease
    stopped: threading.Event
    pause: Pause
    deaths: DeathLog
    spec: ModelSpec
    rows: pa.Table

    def __post_init__(self) -> None:
        self._timeouts = engine_status.timeouts(self.context)
        self._meter = ThroughputMeter(self.segment, self.spec)
        self._cache = Cache(self.context, self.segment, self.spec.config_sha256)
        drain = Drain(self.context, self.spec.name, self.rows.num_rows)
        self._writer = ChunkWriter(self.context, self.segment, self.stopped, self._meter, self._cache, drain)
        self._engine: dict[str, str] | None = None
        self._served_models: set[str] = set()
        self._formed = self.rows.filter(pc.match_substring_regex(self.rows["body"], forms.MAY_ASK))
        self._checks = forms.Checks(CHECK_SECONDS)

    def run(self) -> dict[str, str] | None:
        try:
            with ExitStack() as engines:
                try:
                    for table in self._answers(engines):
                        self._writer.add(table)
                finally:
                    self._writer.flush(ends=True)  # before the engines hear that the run is over
        except EngineStartError as failure:
            if self._engine is not None or not is_derived(self.spec.name):
                raise
            # Nobody will mend what a job has derived for itself, so its requests need not wait for that.
            log.warning("engine of a derived model not started: %s", failure, extra={"model": self.spec.name})
            with self.context.database.write() as session:
                holds.release(session, self.spec.name)
            error = ("engine_unavailable", failure.message)
            refuse(self.context, self.segment, self.stopped, self.rows, *error)
        except Stopped:
            ids = {"batch_id": self.segment.batch_id, "segment_id": self.segment.lease.id}
            log.info("segment stopped", extra=ids)
        if not self.stopped.is_set():
            self._publish_engines()
        if self._engine is not None and self._served_models:
            return self._engine | {"served_model": ", ".join(sorted(self._served_models))}
        return self._engine

    def _answers(self, engines: ExitStack) -> Iterator[pa.Table]:
        """Yield cached answers, then the engine's, each with its duplicates. `engines` ends its run."""
        duplicates, requests = Duplicates(self.rows), self.rows.filter(pc.is_null(self.rows["same_as"]))
        published_at = time.monotonic()
        in_flight = self._start()
        for table in self._cache.find(requests, self._engine or {}):
            yield from duplicates.join(self._checked(table), shared=True)
            requests = _without(requests, table["line"])
        self._writer.flush()
        self._meter.expect(requests.num_rows, in_flight * self.spec.replicas)
        for table in self._unless_refused(self._computed(requests, engines)):
            self._served_models.update(pc.unique(pc.drop_null(table["served_model"])).to_pylist())
            yield from duplicates.join(self._checked(table))
            if time.monotonic() - published_at >= engine_status.INTERVAL_SECONDS:
                published_at = time.monotonic()
                self._publish_engines()

    def _checked(self, answers: pa.Table) -> pa.Table:
        """Add a column `invalid`: True for answers without the form that their request asks for."""
        invalid = [False] * answers.num_rows
        places = pc.index_in(answers["line"], value_set=self._formed["line"].combine_chunks())
        for number, (place, ok) in enumerate(zip(places.to_pylist(), answers["ok"].to_pylist(), strict=True)):
            if ok and place is not None:
                body, answer = self._formed["body"][place].as_py(), answers["answer"][number].as_py()
                try:
                    invalid[number] = self._checks.is_invalid(body, answer)
                except TimeoutError as error:
                    ids = {"batch_id": self.segment.batch_id, "segment_id": self.segment.lease.id}
                    log.warning("answers are no longer checked: %s", error, extra=ids)
        return answers.append_column("invalid", pa.array(invalid, pa.bool_()))

    def _start(self) -> int:
        """Start the model's engine unless it runs, and return its limit of requests in flight."""
        from inference import pipeline

        with engine_status.starting(self.context, self.spec.name) as is_whole, self._meter.excluded():
            self.context.join_ray(self.stopped)
            started = pipeline.start(self.spec, self._timeouts, stopped=self.stopped, on_death=self._record_death)
        self._engine = started.versions
        if self._meter.started:
            self._publish_engines()
        if not is_whole:
            self._meter.forget_start()
        gpu_sharing.clear_demand(self.context, self.spec.name)
        if self.segment.held is not None:
            with self.context.database.write() as session:
                holds.engine_started(session, self.spec.name)
        return started.in_flight

    def _computed(self, requests: pa.Table, engines: ExitStack) -> Iterator[pa.Table]:
        from inference import pipeline

        key = f"{self.segment.batch_id}/{self.segment.number}"
        self.pause.close = functools.partial(pipeline.close, self.spec, key, self._timeouts.request_timeout)
        by_item = False  # unless items of a job come back to a stage, and several replicas answer it
        if self.segment.job_id is not None and self.spec.replicas > 1:
            with self.context.database.read() as session:
                by_item = port().returns(self.context, session, self.segment.job_id)
        answers = pipeline.run(
            self.spec,
            self.segment.endpoint,
            requests.select(pipeline.REQUESTS),
            self._timeouts,
            idempotency_key=key,
            stopped=self.stopped,
            paused=self.pause.requested,
            on_death=self._record_death,
            by_item=by_item,
            alone=self.segment.alone,
            replica=self.segment.replica,
        )
        engines.enter_context(closing(answers))
        starts = capabilities(self.spec.engine).starts_each_run
        while not self.stopped.is_set():
            with self._meter.excluded() if starts else nullcontext():
                table = next(answers, None)
            if table is None:
                return
            starts = False
            yield table

    def _unless_refused(self, answers: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield the answers. Raises EngineStartError if the endpoints refuse the account."""
        refused: list[pa.Table] = []
        reason: str | None = None
        for table in answers:
            answered = pc.any(table["ok"]).as_py()
            reasons = [None] if answered else [_account_refusal(line) for line in table["answer"].to_pylist()]
            if not all(reasons):
                yield from refused
                yield table
                yield from answers
                return
            refused.append(table)
            reason = reasons[0] if reasons else reason
            if sum(one.num_rows for one in refused) >= REFUSED_REQUESTS:
                break
        if reason is not None and not self.stopped.is_set():
            raise EngineStartError(f"{holds.REFUSED}{reason}")

    def _record_death(self, death: Death) -> None:
        self._writer.flush()  # answers from before a death are none after it
        self.deaths.add(death)

    def _publish_engines(self) -> None:
        from inference.residents import directory

        engine_status.publish(self.context, directory.states(timeout=1.0))


def refusal_of(context: AppContext, segment: segments.SegmentLease) -> tuple[str, str] | None:
    """Return why no engine will answer the segment's requests, as (code, message); None if one may."""
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


def refuse(
    context: AppContext, segment: segments.SegmentLease, stopped: threading.Event, rows: pa.Table, *error: str
) -> None:
    writer = ChunkWriter(context, segment, stopped)  # no meter: no engine answers these
    writer.add(_engine_error(rows, *error))
    writer.flush()


def _engine_error(rows: pa.Table, code: str, message: str) -> pa.Table:
    answers = output_lines.unanswered(rows["line"].to_pylist(), rows["custom_id"].to_pylist(), code, message)
    none, zeros = [False] * rows.num_rows, pa.array([0] * rows.num_rows, pa.int64())
    columns = {"line": rows["line"], "ok": none, "answer": answers, **dict.fromkeys(TOKENS, zeros), "shared": none}
    columns |= {"reasoning_tokens": zeros, "invalid": none}
    return pa.table(columns | {"seconds": pa.nulls(rows.num_rows, pa.float64())})


def _account_refusal(line: str) -> str | None:
    """Return the message of an output line that says that a key, a quota or a bill is refused; None for others."""
    answer = json_lines.loads(line)
    status = (answer.get("response") or {}).get("status_code")
    return output_lines.reason(answer)[1] if accounts.refused(status, output_lines.error(answer)) else None


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
