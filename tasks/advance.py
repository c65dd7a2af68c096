"""Advance: a task that ends starts what may run next; housekeeping repeats it."""

from __future__ import annotations

import logging

from batchyard.errors import LeaseLost, UnavailableError
from tasks.context import AppContext
from tasks.execution import segment
from tasks.execution.running import RUNNING
from tasks.finishing import finalize
from tasks.intake import validation
from tasks.jobs.finishing import ready
from tasks.scheduling import dispatch

log = logging.getLogger(__name__)


def advance(context: AppContext, holder: str | None = None) -> None:
    """Start whatever may start now: the finishing of batches with no request left, and segments within the limits.

    With a `holder` this process finishes one small batch itself, after that.
    """
    small = finalize.start_ready(context, keep_one=holder is not None)
    dispatch.run(context)
    if small is not None and holder is not None:
        try:
            finish(context, small, holder, merge=True)
        except (LeaseLost, UnavailableError) as error:  # housekeeping sends a message of it
            log.warning("batch not finished at once: %s", error, extra={"batch_id": small})


def finish(context: AppContext, batch_id: str, holder: str, *, merge: bool) -> None:
    """End a batch, then start the finishing of its job if that was the last one."""
    batch = finalize.end(context, batch_id, holder, merge=merge)
    if batch is not None and batch.job_id is not None:
        ready.start_ready(context)


def validate(context: AppContext, batch_id: str, holder: str) -> None:
    """Validate a batch, then start its first segments, or its finishing if none is needed."""
    if validation.run(context, batch_id, holder):
        advance(context, holder)


def run_segment(context: AppContext, segment_id: int, epoch: int, holder: str) -> None:
    """Run a segment, then fill the slot it leaves. After an unexpected error, housekeeping fills it.

    A process that ends leaves that to housekeeping too, or it would get the segment again.
    """
    if segment.run(context, segment_id, epoch, holder) and not RUNNING.ending:
        advance(context, holder)
