"""Finishing a batch: a chain of merge, post-processing steps and end. Each link may run twice.

Without steps the end merges, too, so that there is one message instead of two, or none (`start_ready`).
"""

import json
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from batchyard import signatures
from batchyard.endpoints import output_lines
from batchyard.errors import ConflictError, LeaseLost, NotFoundError, UnavailableError
from batchyard.telemetry import spans
from store import batches, files, segments
from store.batches import BATCHES
from store.formats import results
from store.formats.results import ERRORS, OUTPUT
from store.intake import outputs
from store.intake.outputs import Destination
from store.leases import Lease
from store.records import Batch
from store.work import traces, turns
from store.work.lifecycle import FINISHING_SECONDS
from tasks import messages
from tasks.context import AppContext
from tasks.execution import progress
from tasks.finishing import manifest, result_files
from tasks.heartbeat import hold_batch
from tasks.scheduling import deadlines
from tasks.scheduling.throughput import measure_finish
from tasks.steps import registry, verify
from tasks.steps.step import EarlierBatch

log = logging.getLogger(__name__)

SMALL_REQUESTS = 1000
"""A batch of so many requests is merged in hundredths of a second, less than a message costs two processes."""
STEP_SECONDS = FINISHING_SECONDS / 2
"""A step that waits longer than this for a part of the deployment has failed, and the batch completes without it."""
UNINSTALLED = "_uninstalled"
"""Task of steps whose package was uninstalled: Celery drops a chain with an unknown task, which would never end."""


def start_ready(context: AppContext, *, keep_one: bool = False) -> str | None:
    """Start to finish every batch whose segments are all done or no longer wanted.

    `keep_one`: send no message for one small batch without steps, but return its id, which the caller has to `end`.
    """
    with context.database.read() as session:
        if not batches.any_ends(session):  # the usual case, without waiting for the write lock
            return None
    with context.database.write() as session:
        segments.withdraw(session)
        batches.pause_sampled(session)
        batches.end_running(session)
        ready = batches.claim_finishable(session, context.settings.queue_seconds)
        ending = {batch_id: session.get_one(Batch, batch_id) for batch_id in ready}
        steps = {batch_id: _steps(batch) for batch_id, batch in ending.items()}
        small = (id_ for id_, batch in ending.items() if not steps[id_] and batch.total <= SMALL_REQUESTS)
        kept = next(small, None) if keep_one else None
        names = batches.titles(session, others) if (others := ending.keys() - {kept}) else {}
        merged = turns.at_steps(session, names)
    for batch_id, name in names.items():
        send = messages.steps if batch_id in merged else messages.finish
        send(batch_id, steps[batch_id], name)
    for batch_id, batch in ending.items():
        log.info("finishing", extra={"batch_id": batch_id, "outcome": batch.outcome})
    return kept


def merge_before_steps(context: AppContext, batch_id: str, holder: str) -> bool | None:
    """Merge a batch that has steps, and send these. Return None if it has none, False if another holder did it."""
    with context.database.read() as session:
        steps = _steps(session.get_one(Batch, batch_id))
        title, is_merged = batches.titles(session, [batch_id])[batch_id], bool(turns.at_steps(session, [batch_id]))
    if not steps:
        return None
    if is_merged or not merge(context, batch_id, holder):
        return False
    messages.steps(batch_id, steps, title)
    return True


def _steps(batch: Batch) -> list[str]:
    """Return the names of the tasks of its steps. The client wants no more work on a cancelled batch."""
    known = registry.STEPS.names()
    entries = [] if batch.outcome == "cancelled" else batch.post_process
    return [entry["step"] if entry["step"] in known else UNINSTALLED for entry in entries]


def merge(context: AppContext, batch_id: str, holder: str) -> bool:
    """Write the output and error files. Return False if another holder finishes this batch or it has ended.

    Raises, before anything is published, LeaseLost; BatchyardError if a line lacks its one answer.
    """
    with hold_batch(context, batch_id, holder, context.settings.queue_seconds) as lease:
        batch = _ending(context, batch_id) if lease else None
        if lease is None or batch is None:
            return False
        with spans.span("merge", traces.place(batch)):
            _write_files(context, batch, lease)
    return True


def _write_files(context: AppContext, batch: Batch, lease: Lease) -> None:
    with context.database.read() as session:
        chunks = [sha256 for sha256, _ in segments.chunks(session, batch.id)]
        plans = segments.plans(session, batch.id)
    outcome = batch.outcome or "completed"
    artifacts, create = context.artifacts, context.artifacts.create
    source = None
    if batch.job_id is not None or not batch.input_sha256:  # its requests came one after the other
        with create() as source:
            result_files.write_input(artifacts, plans, batch.endpoint, source)
    input_sha256 = source.sha256 if source else batch.input_sha256
    with create() as output, create() as errors, create() as seconds, create() as rows:
        never_run = output_lines.NEVER_RUN[outcome]
        merged = result_files.merge(artifacts, plans, chunks, never_run, input_sha256, output, errors, seconds, rows)
    with context.database.write() as session:
        lease.guard(session)
        batch = session.get_one(Batch, batch.id)
        if source is not None:
            batches.set_input(session, batch, result_files.INPUT, source.sha256, source.size)
        batch.seconds_sha256 = seconds.sha256 if seconds.size else None
        batch.rows_sha256 = rows.sha256 if rows.size else None
        if batch.expired and outcome == "cancelled":  # cancelled since it was merged as expired
            batch.expired = 0
            batch.post_process = [registry.request(entry) for entry in batch.post_process]
            names = [artifact.name for artifact, _ in batches.artifacts(session, [batch.id])[batch.id]]
            batches.remove_artifacts(session, batch, set(names) - {OUTPUT, ERRORS})
        if outcome in ("expired", "cancelled"):
            setattr(batch, outcome, merged.never_run)
        if output.size:
            batches.add_artifact(session, batch, OUTPUT, output.sha256, output.size, merged.completed)
        if errors.size:
            lines = merged.failed + merged.never_run
            batches.add_artifact(session, batch, ERRORS, errors.sha256, errors.size, lines)
    log.info("merged", extra={"batch_id": batch.id, **vars(merged)})


def run_step(context: AppContext, batch_id: str, position: int, holder: str) -> bool:
    """Run the post-processing step at `position`. Return False if another holder finishes this batch or it has ended.

    A step that fails is recorded with its error; the batch still completes. Raises UnavailableError after STEP_SECONDS.
    """
    with hold_batch(context, batch_id, holder, context.settings.queue_seconds) as lease:
        batch = _ending(context, batch_id) if lease else None
        if lease is None or batch is None:
            return False
        entry = batch.post_process[position]
        if batch.outcome == "cancelled" or entry.get("status") == "completed":
            return True  # the client wants no more work on it, or a chain that was cut off has done it
        request = registry.request(entry)
        with spans.span(f"step {entry['step']}", traces.place(batch)) as span:
            try:
                with ExitStack() as opened:
                    outcome = registry.run(request, _Results(context, batch, lease, opened))
            except LeaseLost:
                raise
            except Exception as error:
                if isinstance(error, UnavailableError) and time.time() < (batch.finalizing_at or 0) + STEP_SECONDS:
                    raise
                log.exception("step failed", extra={"batch_id": batch_id, "step": entry["step"]})
                span.fail(error)
                outcome = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        with context.database.write() as session:
            lease.guard(session)
            batch = session.get_one(Batch, batch_id)
            entries = list(batch.post_process)
            entries[position] = request | outcome
            batch.post_process = entries
            if request["step"] == verify.NAME and outcome["status"] == "completed":
                batches.set_verification(session, batch, request["batch_id"], outcome["summary"])
    log.info("step ended", extra={"batch_id": batch_id, "step": request["step"], "outcome": outcome["status"]})
    return True


class _Results:
    """A batch as its steps see it (tasks.steps.step.Results). `opened` closes the files that `rows` reads."""

    def __init__(self, context: AppContext, batch: Batch, lease: Lease, opened: ExitStack) -> None:
        self._context = context
        self._batch = batch
        self._lease = lease
        self._opened = opened
        with context.database.read() as session:
            self._artifacts = {
                artifact.name: file.sha256 for artifact, file in batches.artifacts(session, [batch.id])[batch.id]
            }

    def rows(self) -> Any:
        return self._rows(self._batch, self._artifacts)

    def _rows(self, batch: Batch, named: Mapping[str, str]) -> Any:
        source = self._opened.enter_context(self._context.artifacts.open(batch.input_sha256))
        contents = (named.get(OUTPUT), named.get(ERRORS), batch.seconds_sha256)
        output, errors, seconds = (
            self._opened.enter_context(self._context.artifacts.open(sha256)) if sha256 else None for sha256 in contents
        )
        return results.rows(source, output, errors, seconds)

    def earlier(self, batch_id: str) -> EarlierBatch:
        with self._context.database.read() as session:
            batch = BATCHES.get(session, self._batch.project_id, batch_id)
            named = {artifact.name: file.sha256 for artifact, file in batches.artifacts(session, [batch_id])[batch_id]}
            source = files.find(session, batch.project_id, batch.input_file_id)
            now = json.loads(manifest.build(session, self._batch, ""))
        if source is None or not named.keys() >= {OUTPUT, manifest.NAME} | ({ERRORS} if batch.error_file_id else set()):
            raise NotFoundError(f"the requests or the answers of {batch_id} were deleted or have expired")
        if (batch.endpoint, batch.guard) != (self._batch.endpoint, self._batch.guard):
            raise ConflictError(f"{batch_id} has another endpoint or another guard")
        then = json.loads(self._context.artifacts.read(named[manifest.NAME]))
        return EarlierBatch(self._rows(batch, named), batch.completed, manifest.changes(then, now))

    def create(self) -> Any:
        return self._context.artifacts.create()

    def output(self, url: str, columns: Mapping[str, str]) -> Destination:
        return outputs.output(url, self._batch, self._context.settings.output_database_urls, columns)

    def add(self, name: str, sha256: str, size: int, lines: int | None = None) -> None:
        with self._context.database.write() as session:
            self._lease.guard(session)
            batches.add_artifact(session, self._batch, name, sha256, size, lines)


def end(context: AppContext, batch_id: str, holder: str, *, merge: bool = False) -> Batch | None:
    """Write the manifest and end the batch. Do nothing if another holder finishes it or it has ended.

    `merge`: `merge` has not run yet. The same is raised. Return the batch as it was before; None if nothing was done.
    """
    ended = None
    with hold_batch(context, batch_id, holder, context.settings.queue_seconds) as lease:
        while ended is None and lease is not None and (batch := _ending(context, batch_id)) is not None:
            # Cancelled since it was merged as expired: the lines say what the status will say.
            if merge or (batch.expired and batch.outcome == "cancelled"):
                with spans.span("merge", traces.place(batch)):
                    _write_files(context, batch, lease)
                merge = False
                continue
            status = "cancelled" if batch.status == "cancelling" else batch.outcome or "completed"
            with context.database.read() as session:
                content = manifest.build(session, batch, status)
                timeline = segments.timeline(session, batch)
            written = signatures.signed(context.settings.signing_key, content)
            stored = {name: (context.artifacts.put(file), len(file)) for name, file in written.items()}
            with context.database.write() as session:
                lease.guard(session)
                current = session.get_one(Batch, batch_id)
                if current.status != batch.status:
                    continue  # a cancellation has won; it says nothing of the deadline
                file_ids = {
                    artifact.name: file.id for artifact, file in batches.artifacts(session, [batch_id])[batch_id]
                }
                published = {"output_file_id": file_ids.get(OUTPUT), "error_file_id": file_ids.get(ERRORS)}
                if status != "cancelled":
                    deadlines.finalize_sla(session, current)
                if batches.transition(session, batch_id, batch.status, status, timeline=timeline, **published):
                    ended = batch
                    lease.release(session)
                    for name, (sha256, size) in stored.items():
                        batches.add_artifact(session, batch, name, sha256, size, None)
                    if status == "completed" and timeline and not batch.attempts:
                        measure_finish(session, batch, time.time() - timeline[-1][0])
                    log.info("ended", extra={"batch_id": batch_id, "status": status})
    progress.publish(context, batch_id)
    return ended


def _ending(context: AppContext, batch_id: str) -> Batch | None:
    with context.database.read() as session:
        batch = session.get(Batch, batch_id)
    return batch if batch is not None and batch.status in ("finalizing", "cancelling") else None
