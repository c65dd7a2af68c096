"""Advance: a task that ends starts what may run next; housekeeping repeats it."""

import functools
import logging
from collections.abc import Callable, Mapping

from sqlalchemy.orm import Session

from batchyard.errors import LeaseLost, UnavailableError
from store.work import turns as waiting
from store.work.turns import Noun, Step, Waiting
from tasks import messages
from tasks.context import AppContext
from tasks.execution import segment
from tasks.execution.running import RUNNING
from tasks.finishing import finalize
from tasks.intake import validation
from tasks.port import port
from tasks.scheduling import dispatch, turns

log = logging.getLogger(__name__)


def advance(context: AppContext, holder: str | None = None) -> None:
    """Start whatever may start now: the finishing of batches with no request left, and segments within the limits.

    With a `holder` this process finishes one small batch itself after that, as if a message had named it.
    """
    small = finalize.start_ready(context, keep_one=holder is not None)
    dispatch.run(context)
    if small is not None and holder is not None:
        try:
            # No validation, which would come here again.
            turns.take(
                context,
                ("finishing", "batch", small),
                functools.partial(waiting.oldest, step="finishing"),
                _steps(context, holder),
                lambda: messages.finish(small, []),
            )
        except (LeaseLost, UnavailableError) as error:  # housekeeping sends a message of it
            log.warning("batch not finished at once: %s", error, extra={"batch_id": small})


def finish(context: AppContext, batch_id: str, holder: str, *, merge: bool) -> bool:
    """End a batch, then start the finishing of its job if that was the last one. False if it has ended already."""
    batch = finalize.end(context, batch_id, holder, merge=merge)
    if batch is not None and batch.job_id is not None:
        port().batch_ended(context)
    return batch is not None


def finish_next(context: AppContext, named: tuple[Noun, str], holder: str, send_again: Callable[[], None]) -> None:
    """Finish the batch or the job whose project has its turn; a batch with steps as far as these.

    Projects without anything to finish take part with what they have to validate: else others' bursts of small batches,
    whose finishing goes first, would keep them waiting.
    """
    turns.take(context, ("finishing", *named), _finishing_first, _steps(context, holder), send_again)


def validate_next(context: AppContext, named: tuple[Noun, str], holder: str, send_again: Callable[[], None]) -> None:
    """Validate the batch or the job whose project has its turn, then start what may run of it."""
    unvalidated = functools.partial(waiting.oldest, step="validation")
    turns.take(context, ("validation", *named), unvalidated, _steps(context, holder), send_again)


def _finishing_first(session: Session) -> list[Waiting]:
    """Return what can be finished, and what other projects have to validate."""
    unfinished = waiting.oldest(session, "finishing")
    projects = {one.project_id for one in unfinished}
    unvalidated = waiting.oldest(session, "validation")
    return [*unfinished, *(one for one in unvalidated if one.project_id not in projects)]


def _steps(context: AppContext, holder: str) -> Mapping[tuple[Step, Noun], Callable[[str], bool]]:
    """Return how each step is done; False if another worker does it, or did."""

    def finish_or_merge(batch_id: str) -> bool:
        merged = finalize.merge_before_steps(context, batch_id, holder)
        return finish(context, batch_id, holder, merge=True) if merged is None else merged

    return {
        ("validation", "batch"): lambda batch_id: validate(context, batch_id, holder),
        ("validation", "job"): lambda job_id: port().validate(context, job_id, holder),
        ("finishing", "batch"): finish_or_merge,
        ("finishing", "job"): lambda job_id: port().finish(context, job_id, holder),
    }


def validate(context: AppContext, batch_id: str, holder: str) -> bool:
    """Validate a batch, then start its first segments, or its finishing if none is needed. False as validation.run."""
    if not validation.run(context, batch_id, holder):
        return False
    advance(context, holder)
    return True


def run_segment(context: AppContext, segment_id: int, epoch: int, holder: str) -> None:
    """Run a segment, then fill the slot it leaves. Housekeeping does if that fails or the process ends."""
    if segment.run(context, segment_id, epoch, holder) and not RUNNING.ending:
        advance(context, holder)
