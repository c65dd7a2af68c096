"""The outlook of a job before it is made: what it would do, and how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.catalogue import catalogue_of
from jobs.kinds.kind import JobEstimate
from jobs.kinds.registry import kind_of
from jobs.submission import creation
from jobs.submission.creation import JobRequest
from store.jobs import reading
from tasks.context import AppContext
from tasks.intake import submission


@dataclass(frozen=True)
class JobOutlook:
    """What a job would be.

    Attributes:
        same: the id of the newest job of the project with this `config_sha256`.
        due_at: until when it would have to be done.
        warnings: code and message of what makes it slow, and of why nobody knows its end.
    """

    estimate: JobEstimate
    config_sha256: str
    work_sha256: str
    same: str | None
    due_at: int
    warnings: Sequence[tuple[str, str]]


def run(context: AppContext, project_id: str, request: JobRequest) -> JobOutlook:
    """Check a job as `creation.draft` does, and return what it would be. Nothing is created. Raises RequestError."""
    draft = creation.draft(context, project_id, request)
    job = draft.job
    recipe = catalogue_of(context).recipe(job.recipe)
    with context.database.read() as session:
        same = reading.same(session, project_id, job.config_sha256)
    estimate = kind_of(recipe).estimate(context, recipe, draft)
    return JobOutlook(
        estimate=estimate,
        config_sha256=job.config_sha256,
        work_sha256=job.work_sha256,
        same=same,
        due_at=submission.due_if_created_now(context, job),
        warnings=[*creation.warnings(context, job.models), *estimate.warnings],
    )
