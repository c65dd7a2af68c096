"""Erasure: delete batches, jobs and projects with all that they had, and have their content removed.

The rows go first, in one transaction with the SHA-256 of their content (store.records.ErasedContent). So a process that
dies anywhere leaves nothing behind that nobody removes. Amounts of usage stay, but for those of an erased project.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, cast

from sqlalchemy import ColumnElement, Row, Select, delete, inspect, or_, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from batchyard.errors import ConflictError
from batchyard.statuses import JOB_RUNNING, TERMINAL
from store import events, files, projects
from store.deletion import retention
from store.deletion.retention import UNUSED, Old
from store.keys import Principal, in_use
from store.records import (
    ApiKey,
    Artifact,
    Base,
    Batch,
    Budget,
    CachedAnswer,
    DailyUsage,
    Delivery,
    ErasedContent,
    Event,
    File,
    FileUpload,
    Job,
    JobArtifact,
    JobChunk,
    Project,
    ResultChunk,
    Schedule,
    ScheduleRun,
    Segment,
    UploadPart,
    WatchedObject,
    Webhook,
    WebSession,
    now,
)
from store.work.lifecycle import Lifecycle, Record, ended_at, refuse_stage

_CONTENT: dict[type[Base], InstrumentedAttribute[str]] = {
    File: File.sha256,
    Schedule: Schedule.input_sha256,
    UploadPart: UploadPart.sha256,
}
"""The column with the SHA-256 of a row's content, of the tables that have one and are erased by rows."""


class Family(NamedTuple):
    """The ids, all locked, of what is erased together: a batch; or a job, its batches and children, and theirs."""

    batch_ids: list[str]
    job_ids: list[str]


def family(session: Session, life: Lifecycle[Record], project_id: str, work_id: str) -> Family:
    """Return what is erased with a batch or a job.

    Raises NotFoundError; ConflictError if some of it has not ended, other work needs it, or it is part of a job.
    """
    work = life.get(session, project_id, work_id)
    refuse_stage(work, "delete")
    jobs: list[Job] = _with_children(session, work) if isinstance(work, Job) else []
    job_ids = [job.id for job in jobs]
    of_work = Batch.job_id.in_(job_ids) if isinstance(work, Job) else Batch.id == work_id
    batches: Sequence[Batch] = session.scalars(select(Batch).where(of_work).order_by(Batch.id).with_for_update()).all()
    members: list[Batch | Job] = [*jobs, *batches]
    running = next((member for member in members if member.status not in TERMINAL), None)
    if running is not None:
        whole = "" if running.id == work_id else f" of {life.noun} '{work_id}'"
        message = (
            f"Cannot delete a {life.noun} that runs: '{running.id}'{whole} is {running.status}; cancel it first, and "
            "delete it once it has ended."
        )
        raise ConflictError(message, code=f"{life.noun}_not_ended", param=f"{life.noun}_id")
    return Family([batch.id for batch in batches], job_ids)


def _with_children(session: Session, job: Job) -> list[Job]:
    """Return a job with the jobs that it has started, and those that they have. Raises ConflictError."""
    if job.parent_id is not None and session.get(Job, job.parent_id) is not None:
        message = f"Job '{job.id}' is part of job '{job.parent_id}'; delete that job."
        raise ConflictError(message, code="job_has_parent", param="job_id")
    jobs: list[Job] = []
    of_generation: ColumnElement[bool] = Job.id == job.id
    while generation := session.scalars(select(Job).where(of_generation).order_by(Job.id).with_for_update()).all():
        jobs += generation
        of_generation = Job.parent_id.in_([child.id for child in generation])
    ids = [member.id for member in jobs]
    taking = select(Job.id).where(Job.answers_from.in_(ids), Job.status.in_(JOB_RUNNING), Job.id.not_in(ids))
    taker_id = session.scalar(taking.limit(1))
    if taker_id is not None:
        message = f"Job '{taker_id}' runs and takes the answers of this one; cancel it, or wait for its end."
        raise ConflictError(message, code="job_needed", param="job_id")
    return jobs


def delete_work(session: Session, by: Principal, life: Lifecycle[Record], work_id: str) -> Family:
    """Delete a batch or a job that has ended, with all that it had, and record who did. Raises as `family`.

    Its input file goes too, unless another batch, job or schedule needs it. Return what was deleted.
    """
    members = family(session, life, by.project_id, work_id)
    batch_ids, job_ids = members
    files_of: tuple[Select[Any], ...] = (
        select(Batch.input_file_id).where(Batch.id.in_(batch_ids)),
        select(Artifact.file_id).where(Artifact.batch_id.in_(batch_ids)),
        select(Job.input_file_id).where(Job.id.in_(job_ids)),
        select(JobArtifact.file_id).where(JobArtifact.job_id.in_(job_ids)),
    )
    file_ids = {file_id for statement in files_of for file_id in session.scalars(statement)} - {None}
    files.erase_content(session, _hashes(session, members) | {_mark(work_id)})
    of_work = or_(Event.batch_id.in_(batch_ids), Event.job_id.in_(job_ids))
    session.execute(delete(Delivery).where(Delivery.event_id.in_(select(Event.id).where(of_work))))
    session.execute(delete(CachedAnswer).where(CachedAnswer.batch_id.in_(batch_ids)))
    for old in retention.with_references(batch_ids, job_ids):
        session.execute(delete(old.record).where(old.ended).execution_options(synchronize_session=False))
    _delete_files(session, session.scalars(select(File.id).where(File.id.in_(file_ids), UNUSED)).all())
    events.act(session, by, cast(events.Action, f"{life.noun}.deleted"), work_id)
    return members


def _mark(erased_id: str) -> str:
    """Return the SHA-256 of an id, which stands among those of its content.

    So what had no content has one too: the database's log is emptied before it is forgotten.
    """
    return hashlib.sha256(erased_id.encode()).hexdigest()


def _hashes(session: Session, members: Family) -> set[str | None]:
    """Return the SHA-256 of all content that the records of batches and jobs name, but for their files."""
    columns_of_batches = {
        Batch.id: (Batch.input_sha256, Batch.plan_sha256, Batch.seconds_sha256, Batch.rows_sha256),
        Segment.batch_id: (Segment.plan_sha256,),
        ResultChunk.batch_id: (ResultChunk.sha256,),
    }
    columns_of_jobs = {Job.id: (Job.input_sha256, Job.items_sha256), JobChunk.job_id: (JobChunk.sha256,)}
    hashes: set[str | None] = set()
    for columns, ids in ((columns_of_batches, members.batch_ids), (columns_of_jobs, members.job_ids)):
        for owner, of_owner in columns.items():
            for column in of_owner:
                hashes.update(session.scalars(select(column).distinct().where(owner.in_(ids))))
    return hashes


def _delete_files(session: Session, file_ids: Collection[str]) -> None:
    files.erase_content(session, session.scalars(select(File.sha256).where(File.id.in_(file_ids))).all())
    session.execute(delete(FileUpload).where(FileUpload.file_id.in_(file_ids)))
    session.execute(delete(File).where(File.id.in_(file_ids)).execution_options(synchronize_session=False))


def delete_unused_files(session: Session, project_id: str, before: float) -> int:
    """Delete old files that no work or schedule needs, retention.ROWS at most. Return their number."""
    unused = select(File.id).where(File.project_id == project_id, File.created_at <= before, UNUSED)
    file_ids = session.scalars(unused.limit(retention.ROWS)).all()
    _delete_files(session, file_ids)
    return len(file_ids)


# Projects


def begin(session: Session, by: Principal, project_id: str) -> Project:
    """Begin to erase a project: its keys, schedules and webhooks end at once. Beginning twice changes nothing.

    Raises NotFoundError; ConflictError if no administrator would be left who could see its end.
    """
    project = projects.get(session, project_id, lock=True)
    if project.erasing_at is not None:
        return project
    others = select(ApiKey.id).where(ApiKey.admin, ApiKey.project_id != project_id, in_use(now()))
    if by.project_id == project_id or session.scalar(others.limit(1)) is None:
        message = (
            f"Project '{project.name}' cannot be erased with its own key, or if no other project has an admin key; "
            "make one with 'batchyard key create --admin --project OTHER'."
        )
        raise ConflictError(message, code="own_project", param="project_id")
    project.erasing_at = now()
    of_project = ApiKey.project_id == project_id
    session.execute(update(ApiKey).where(of_project, ApiKey.revoked_at.is_(None)).values(revoked_at=now()))
    stopped = {"next_run_at": None, "paused": True, "version": Schedule.version + 1}
    session.execute(update(Schedule).where(Schedule.project_id == project_id).values(**stopped))
    session.execute(update(Webhook).where(Webhook.project_id == project_id).values(enabled=False))
    events.act(session, by, "project.deleted", project_id, name=project.name)
    return project


def limited(session: Session) -> Sequence[Project]:
    """Return the projects that are being erased, or keep nothing for long."""
    erased = or_(Project.erasing_at.is_not(None), Project.zero_retention_minutes.is_not(None))
    return session.scalars(select(Project).where(erased).order_by(Project.id)).all()


def running(session: Session, life: Lifecycle[Record], project_id: str) -> Sequence[str]:
    """Return ids of batches or jobs of a project that can be cancelled, retention.BATCHES at most."""
    record = life.record
    active = (record.project_id == project_id, record.status.in_(life.running), record.status != "cancelling")
    return session.scalars(select(record.id).where(*active, _whole(record)).limit(retention.BATCHES)).all()


def ended(session: Session, life: Lifecycle[Record], project_id: str, before: float, after: str) -> Sequence[str]:
    """Return at most retention.BATCHES ids, after `after`, of work that ended before `before`."""
    record = life.record
    over = (record.project_id == project_id, record.status.in_(TERMINAL), ended_at(record) <= before)
    statement = select(record.id).where(*over, _whole(record), record.id > after)
    return session.scalars(statement.order_by(record.id).limit(retention.BATCHES)).all()


def _whole(record: type[Batch] | type[Job]) -> ColumnElement[bool]:
    return Batch.job_id.is_(None) if record is Batch else Job.parent_id.is_(None)


def has_work(session: Session, project_id: str) -> bool:
    statements = (select(record.id).where(record.project_id == project_id).limit(1) for record in (Batch, Job))
    return any(session.scalar(statement) is not None for statement in statements)


def of_project(project_id: str) -> list[Old]:
    """Return all rows of a project that has no batches and no jobs, after those that refer to them; itself last."""
    uploads = select(FileUpload.id).where(FileUpload.project_id == project_id)
    keys = select(ApiKey.id).where(ApiKey.project_id == project_id)
    automation = (Delivery, Event, Webhook, WatchedObject, ScheduleRun, Schedule)
    records = (*automation, CachedAnswer, DailyUsage, Budget, FileUpload, File, ApiKey)
    return [
        Old(UploadPart, UploadPart.upload_id.in_(uploads)),
        Old(WebSession, WebSession.key_id.in_(keys)),
        *(Old(record, record.project_id == project_id) for record in records),
        Old(Project, Project.id == project_id),
    ]


def delete_rows(session: Session, old: Old, keys: Sequence[Row[Any]]) -> int:
    """Delete the rows with these primary keys, and have their content removed. Return their number."""
    content = _CONTENT.get(old.record)
    if content is not None:
        chosen = tuple_(*inspect(old.record).primary_key).in_([tuple(key) for key in keys])
        files.erase_content(session, session.scalars(select(content).where(chosen)).all())
    if old.record is Project:
        files.erase_content(session, [_mark(project_id) for (project_id,) in keys])
    return retention.purge(session, old, keys)


# Content


def content(session: Session, before: float, after: str) -> Sequence[str]:
    """Return at most retention.ROWS SHA-256s, after `after`, of content erased before `before`."""
    statement = select(ErasedContent.sha256).where(ErasedContent.erased_at <= before, ErasedContent.sha256 > after)
    return session.scalars(statement.order_by(ErasedContent.sha256).limit(retention.ROWS)).all()


def forget_content(session: Session, hashes: Iterable[str], before: float) -> None:
    """Forget content that is gone, or that others refer to, unless it was erased again since `before`."""
    gone = (ErasedContent.sha256.in_(list(hashes)), ErasedContent.erased_at <= before)
    session.execute(delete(ErasedContent).where(*gone).execution_options(synchronize_session=False))
