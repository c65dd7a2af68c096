"""Composites: the jobs that another job has started, and completed jobs of the same configuration."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from store.files import live
from store.jobs.records import Job, JobArtifact
from store.records import File, now

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
