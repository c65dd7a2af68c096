"""Runs of schedules: the batch or job that a run makes, and why there is none."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.orm import Session

from batchyard.cron import Cron
from batchyard.errors import ConflictError, PermissionDeniedError, RateLimitError, RequestError
from batchyard.statuses import PRIORITIES
from store import batches, schedules
from store.files import STORAGE_LIMIT
from store.jobs import lifecycle
from store.records import Batch, File, Job, Schedule, ScheduleRun
from store.schedules import State
from tasks import messages
from tasks.context import AppContext
from tasks.intake import submission
from tasks.intake.submission import Draft, NewInput, Outlook
from tasks.port import CheckedJob, port
from tasks.recurring import run_templates

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a scheduled time; `reason` is why no batch or job was created."""

    state: State
    reason: str | None = None
    created: Batch | Job | None = None
    outlook: Outlook | None = None
    is_limited: bool = False  # a limit, the budget or a permission of the project refused it for now

    @property
    def ids(self) -> dict[str, str]:
        if self.created is None:
            return {}
        return {"batch_id" if isinstance(self.created, Batch) else "job_id": self.created.id}


def draft(
    context: AppContext,
    schedule: Schedule,
    times: Cron,
    at: int,
    read: Callable[[], File | NewInput],
    name: str | None = None,
) -> Draft | CheckedJob | Outcome:
    """Prepare a run's batch or job of what `read` returns; return the outcome of one that cannot be.

    Raises UnavailableError.
    """
    options = schedule.job or schedule.batch
    expires_after = options["output_expires_after"]
    common = {
        "completion_window": options["completion_window"],
        "output_expires_after": expires_after and expires_after["seconds"],
        "callback_url": options.get("callback_url"),
    }
    metadata = run_templates.fill_values(options["metadata"], times, at)
    name = name or f"{schedule.name} {times.local(at):%Y-%m-%d %H:%M}"
    try:
        source = read()
        if schedule.job is not None:
            values = {"name": options["name"] or name, "metadata": metadata, **common}
            return port().draft(context, schedule, source, values)
        batch = Batch(
            project_id=schedule.project_id,
            request_metadata=metadata,
            endpoint=options["endpoint"],
            name=name,
            post_process=options["post_process"],
            on_invalid=options["on_invalid"],
            stop_when={name: limit for name, limit in (options.get("stop_when") or {}).items() if limit} or None,
            guard=options.get("guard"),
            priority=PRIORITIES[options["priority"]],
            **common,
        )
        return submission.draft(context, batch, source)
    except RequestError as error:  # also of what the deployment has or allows no more, such as a recipe or a folder
        return _refused(error)


def create(context: AppContext, session: Session, schedule: Schedule, draft: Draft | CheckedJob | Outcome) -> Outcome:
    """Create a run's batch or job, if the schedule's overlap and the project's limits allow it; see `draft`."""
    if isinstance(draft, Outcome):
        return draft
    unfinished = [] if schedule.overlap == "allow" else schedules.unfinished(session, schedule)
    if unfinished and schedule.overlap == "skip":
        kind = "Batch" if isinstance(unfinished[0], Batch) else "Job"
        return Outcome("skipped", f"{kind} '{unfinished[0].id}' of an earlier run has not ended (overlap 'skip').")
    try:
        with session.begin_nested():
            # Before the project is locked (store.projects.get).
            for earlier in unfinished:
                cancel = batches.cancel if isinstance(earlier, Batch) else lifecycle.cancel
                with suppress(ConflictError):  # it has ended meanwhile
                    cancel(session, schedule.project_id, earlier.id)
            if isinstance(draft, Draft):
                return Outcome("created", created=submission.submit(context, session, draft), outlook=draft.outlook)
            return Outcome("created", created=port().submit(context, session, draft))
    except RequestError as error:
        return _refused(error)


def _refused(error: RequestError) -> Outcome:
    is_limited = isinstance(error, RateLimitError | PermissionDeniedError) or error.code == STORAGE_LIMIT
    return Outcome("failed", error.message, is_limited=is_limited)


def announce(context: AppContext, run: ScheduleRun, outcome: Outcome) -> None:
    ids = {"schedule_id": run.schedule_id, "batch_id": run.batch_id, "job_id": run.job_id}
    log.info("schedule ran", extra={**ids, "scheduled_at": run.scheduled_at, "state": run.state})
    if isinstance(outcome.created, Job):
        port().send(outcome.created)
    elif outcome.created is not None:
        messages.validate(outcome.created.id, outcome.created.name)
        submission.estimate_completion(context, outcome.created, outcome.outlook)
