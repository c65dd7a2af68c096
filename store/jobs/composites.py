"""Composites: the jobs that another job has started, their models, completed jobs of the same configuration."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import String, cast, func, select
from sqlalchemy.orm import Session

from batchyard.models import is_derived
from batchyard.statuses import JOB_RUNNING
from store.files import live
from store.records import Batch, File, Job, JobArtifact, ResultChunk, Segment, now

MANIFEST = "manifest.json"


def children(session: Session, job_id: str) -> dict[str, Job]:
    """Return the jobs that a composite has started, oldest first, by key."""
    statement = select(Job).where(Job.parent_id == job_id).order_by(Job.id)
    return {str(child.child_key): child for child in session.scalars(statement)}


def completed(session: Session, project_id: str, config_sha256: str) -> Job | None:
    """Return the project's newest completed job of a configuration whose manifest is still there, or None."""
    manifest = (
        select(JobArtifact.job_id)
        .join(File, File.id == JobArtifact.file_id)
        .where(JobArtifact.job_id == Job.id, JobArtifact.name == MANIFEST, live(now()))
    )
    same = (Job.project_id == project_id, Job.config_sha256 == config_sha256, Job.status == "completed")
    return session.scalar(select(Job).where(*same, manifest.exists()).order_by(Job.id.desc()).limit(1))


def derived_models(session: Session) -> dict[str, dict[str, Any]]:
    """Return the configurations of the derived models of all jobs that have not ended, by name."""
    some = cast(Job.models, String).contains("~")
    configurations = select(Job.models).where(Job.status.in_(JOB_RUNNING), Job.parent_id.is_not(None), some)
    return {
        name: spec for models in session.scalars(configurations) for name, spec in models.items() if is_derived(name)
    }


def segment_errors(session: Session, job_ids: Sequence[str]) -> list[str]:
    """Return why segments of these jobs have failed last, each reason once."""
    errors = select(Segment.error).join(Batch, Batch.id == Segment.batch_id).where(Batch.job_id.in_(job_ids))
    return sorted({str(error) for error in session.scalars(errors.where(Segment.error.is_not(None)))})


def times(session: Session, job_ids: Sequence[str]) -> tuple[int | None, float | None]:
    """Return when the first batch of these jobs was created (whole seconds), and when their last answer came."""
    of_jobs = Batch.job_id.in_(job_ids)
    began_at = session.scalar(select(func.min(Batch.created_at)).where(of_jobs))
    answers = select(func.max(ResultChunk.created_at)).join(Batch, Batch.id == ResultChunk.batch_id)
    return began_at, session.scalar(answers.where(of_jobs))
