"""Artifacts: the files that a batch or a job has produced, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session

from batchyard.statuses import TERMINAL
from store import files
from store.files import live
from store.records import Artifact, Batch, File, Job, JobArtifact, now

AnyArtifact: TypeAlias = Artifact | JobArtifact


def by_owner(
    session: Session, record: type[Batch] | type[Job], ids: Sequence[str]
) -> dict[str, list[tuple[AnyArtifact, File]]]:
    """Return the artifacts of batches or of jobs, sorted by name, by the id of their owner."""
    artifact, owner = _table(record)
    statement = select(owner, artifact, File).join(File, File.id == artifact.file_id)
    by_id: dict[str, list[tuple[AnyArtifact, File]]] = {owner_id: [] for owner_id in ids}
    for owner_id, row, file in session.execute(statement.where(owner.in_(ids)).order_by(artifact.name)):
        by_id[owner_id].append((row, file))
    return by_id


def find(session: Session, record: type[Batch] | type[Job], project_id: str, owner_id: str, name: str) -> File | None:
    """Return the artifact of that name of ended work of the project, or None. Its content is final."""
    artifact, owner = _table(record)
    return session.scalar(
        select(File)
        .join(artifact, artifact.file_id == File.id)
        .join(record, record.id == owner)
        .where(
            owner == owner_id,
            artifact.name == name,
            File.project_id == project_id,
            record.status.in_(TERMINAL),
            live(now()),
        )
    )


def add(session: Session, work: Batch | Job, name: str, sha256: str, size: int, lines: int | None) -> File:
    """Create a file for content and make it an artifact of a batch or a job.

    An existing one of that name gets the content while the work goes on. The files of work that has ended are final,
    so the artifact gets a new file then.
    """
    artifact, owner = _table(type(work))
    existing = cast(AnyArtifact | None, session.get(artifact, (work.id, name)))
    if existing is not None and work.status not in TERMINAL:
        existing.lines = lines
        file = session.get_one(File, existing.file_id)
        file.sha256, file.bytes = sha256, size
        return file
    file = files.create_output(session, work, name, sha256=sha256, size=size)
    if existing is None:
        session.add(artifact(**{owner.key: work.id}, name=name, file_id=file.id, lines=lines))
    else:
        existing.file_id, existing.lines = file.id, lines
    return file


def _table(record: type[Batch] | type[Job]) -> tuple[type[Artifact] | type[JobArtifact], InstrumentedAttribute[Any]]:
    """Return the table of artifacts of batches or of jobs, and its column with the owner's id."""
    return (Artifact, Artifact.batch_id) if record is Batch else (JobArtifact, JobArtifact.job_id)
