"""Advance: a task that ends starts what may run next; housekeeping repeats it."""

from __future__ import annotations

from tasks.context import AppContext
from tasks.execution import segment
from tasks.execution.running import RUNNING
from tasks.finishing import finalize
from tasks.intake import validation
from tasks.scheduling import dispatch


def advance(context: AppContext) -> None:
    """Start whatever may start now: the finishing of batches with no request left, and segments within the limits."""
    finalize.start_ready(context)
    dispatch.run(context)


def validate(context: AppContext, batch_id: str, holder: str) -> None:
    """Validate a batch, then start its first segments, or its finishing if none is needed."""
    if validation.run(context, batch_id, holder):
        advance(context)


def run_segment(context: AppContext, segment_id: int, epoch: int, holder: str) -> None:
    """Run a segment, then fill the slot it leaves. After an unexpected error, housekeeping fills it.

    A process that ends leaves that to housekeeping too, or it would get the segment again.
    """
    if segment.run(context, segment_id, epoch, holder) and not RUNNING.ending:
        advance(context)
