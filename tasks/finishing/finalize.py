"""Finishing: a chain of merge, post-processing steps and the end. Each link is safe to run twice."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from store import batches, segments
from store.formats import results
from store.leases import Lease
from store.records import Batch
from tasks import messages
from tasks.context import AppContext
from tasks.execution import progress
from tasks.finishing import manifest, result_files
from tasks.heartbeat import hold_batch
from tasks.scheduling import deadlines
from tasks.steps import registry

log = logging.getLogger(__name__)

OUTPUT = "output.jsonl"
ERRORS = "errors.jsonl"
NEVER_RUN = {
    "completed": None,
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed because the batch was cancelled."),
}


def start_ready(context: AppContext) -> None:
    """Begin the finishing of every batch that has come to it."""
    with context.database.read() as session:
        if not batches.any_ends(session):  # the usual case, for which nobody should wait
            return
    with context.database.write() as session:
        segments.withdraw(session)
        batches.end_running(session)
        ready = batches.claim_finishable(session, context.settings.queue_seconds)
        found = [session.get_one(Batch, batch_id) for batch_id in ready]
    for batch in found:
        # A cancelled batch is what its owner wants no more work for.
        wanted = [] if batch.outcome == "cancelled" else [entry["step"] for entry in batch.post_process]
        messages.finish(batch.id, wanted)
        log.info("finishing", extra={"batch_id": batch.id, "outcome": batch.outcome})


def merge(context: AppContext, batch_id: str, holder: str) -> bool:
    """Write the output and error files; False if somebody else is finishing this batch or it has ended."""
    with hold_batch(context, batch_id, holder, context.settings.queue_seconds) as lease:
        batch = _ending(context, batch_id) if lease else None
        if lease is None or batch is None:
            return False
        with context.database.read() as session:
            chunks = [sha256 for sha256, _ in segments.chunks(session, batch_id)]
        never_run = NEVER_RUN[batch.outcome or "completed"]
        with context.artifacts.create() as output, context.artifacts.create() as errors:
            merged = result_files.merge(context.artifacts, batch.plan_sha256 or "", chunks, never_run, output, errors)
        with context.database.write() as session:
            lease.guard(session)
            batch = session.get_one(Batch, batch_id)
            if batch.outcome in ("expired", "cancelled"):
                setattr(batch, batch.outcome, merged.never_run)
            if output.size:
                batches.add_artifact(session, batch, OUTPUT, output.sha256, output.size, merged.completed)
            if errors.size:
                lines = merged.failed + merged.never_run
                batches.add_artifact(session, batch, ERRORS, errors.sha256, errors.size, lines)
    log.info("merged", extra={"batch_id": batch_id, **vars(merged)})
    return True


def run_step(context: AppContext, batch_id: str, position: int, holder: str) -> bool:
    """Run the post-processing step at `position`; False if somebody else is finishing this batch.

    A step that fails is recorded as failed, with its error: the answers are there all the same.
    """
    with hold_batch(context, batch_id, holder, context.settings.queue_seconds) as lease:
        batch = _ending(context, batch_id) if lease else None
        if lease is None or batch is None:
            return False
        entry = batch.post_process[position]
        asked = registry.request(entry)
        try:
            with ExitStack() as opened:
                registry.run(asked, _Results(context, batch, lease, opened))
            outcome: dict[str, Any] = {"status": "completed"}
        except Exception as error:
            log.exception("step failed", extra={"batch_id": batch_id, "step": entry["step"]})
            outcome = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        with context.database.write() as session:
            lease.guard(session)
            batch = session.get_one(Batch, batch_id)
            done = list(batch.post_process)
            done[position] = asked | outcome
            batch.post_process = done
    log.info("step ended", extra={"batch_id": batch_id, "step": asked["step"], "outcome": outcome["status"]})
    return True


class _Results:
    """What a step may see of a batch, and where it puts what it makes (steps.Results)."""

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
        source = self._opened.enter_context(self._context.artifacts.open(self._batch.input_sha256))
        output, errors = (
            self._opened.enter_context(self._context.artifacts.open(self._artifacts[name]))
            if name in self._artifacts
            else None
            for name in (OUTPUT, ERRORS)
        )
        return results.rows(source, output, errors)

    def create(self) -> Any:
        return self._context.artifacts.create()

    def add(self, name: str, sha256: str, size: int, lines: int | None = None) -> None:
        with self._context.database.write() as session:
            self._lease.guard(session)
            batches.add_artifact(session, self._batch, name, sha256, size, lines)


def end(context: AppContext, batch_id: str, holder: str) -> None:
    """Write the manifest, then change the status. Does nothing if it has ended or somebody else is at it."""
    with hold_batch(context, batch_id, holder, context.settings.queue_seconds) as lease:
        while lease is not None and (batch := _ending(context, batch_id)) is not None:
            status = "cancelled" if batch.status == "cancelling" else batch.outcome or "completed"
            content = manifest.build(context, batch, status)
            sha256 = context.artifacts.put(content)
            with context.database.read() as session:
                timeline = segments.timeline(session, batch)
            with context.database.write() as session:
                lease.guard(session)
                found = {artifact.name: file.id for artifact, file in batches.artifacts(session, [batch_id])[batch_id]}
                files = {"output_file_id": found.get(OUTPUT), "error_file_id": found.get(ERRORS)}
                if status != "cancelled":
                    deadlines.finalize_sla(session, session.get_one(Batch, batch_id))
                # Lost only to a cancellation: then it ends as cancelled, the next time round.
                if batches.transition(session, batch_id, batch.status, status, timeline=timeline, **files):
                    lease.release(session)
                    batches.add_artifact(session, batch, manifest.NAME, sha256, len(content), None)
                    log.info("ended", extra={"batch_id": batch_id, "status": status})
    progress.publish(context, batch_id)


def _ending(context: AppContext, batch_id: str) -> Batch | None:
    with context.database.read() as session:
        batch = session.get(Batch, batch_id)
    return batch if batch is not None and batch.status in ("finalizing", "cancelling") else None
