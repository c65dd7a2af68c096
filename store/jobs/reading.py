"""What clients see of jobs: stages with their batches, children, artifacts, and where an item's answers are."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from store.records import Batch, Job, JobStage, Segment


def stage_batches(session: Session, job_ids: Sequence[str]) -> dict[str, list[tuple[JobStage, Batch | None]]]:
    """Return each job's stages in order with their batches, by job id."""
    by_job: dict[str, list[tuple[JobStage, Batch | None]]] = {job_id: [] for job_id in job_ids}
    statement = (
        select(JobStage, Batch)
        .outerjoin(Batch, Batch.id == JobStage.batch_id)
        .where(JobStage.job_id.in_(job_ids))
        .order_by(JobStage.job_id, JobStage.number)
    )
    for stage, batch in session.execute(statement):
        by_job[stage.job_id].append((stage, batch))
    return by_job


class Tokens(NamedTuple):
    """Tokens of prompts, those of them from the prefix cache, tokens of answers, and those of them of reasoning."""

    input: int
    cached: int
    output: int
    reasoning: int


NO_TOKENS = Tokens(0, 0, 0, 0)


def usage(session: Session, job_ids: Sequence[str]) -> dict[str, Tokens]:
    """Return the tokens of each job and of the jobs that it has started, by its id."""
    by_job = dict.fromkeys(job_ids, NO_TOKENS)
    sums = [func.coalesce(func.sum(getattr(Batch, f"{name}_tokens")), 0) for name in Tokens._fields]
    for owner in (Job.id, Job.parent_id):
        statement = select(owner, *sums).join(Batch, Batch.job_id == Job.id).where(owner.in_(job_ids)).group_by(owner)
        for job_id, *tokens in session.execute(statement):
            by_job[job_id] = Tokens(*(total + int(more) for total, more in zip(by_job[job_id], tokens, strict=True)))
    return by_job


def engine_deaths(session: Session, job_id: str) -> dict[str, int]:
    deaths: Counter[str] = Counter()
    for of_batch in session.scalars(select(Batch.engine_deaths).where(Batch.job_id == job_id)):
        deaths.update({model: entry["deaths"] for model, entry in (of_batch or {}).items()})
    return dict(sorted(deaths.items()))


def children(session: Session, job_ids: Sequence[str]) -> dict[str, list[str]]:
    by_job: dict[str, list[str]] = {job_id: [] for job_id in job_ids}
    statement = select(Job.parent_id, Job.id).where(Job.parent_id.in_(job_ids)).order_by(Job.id)
    for parent_id, job_id in session.execute(statement):
        by_job[str(parent_id)].append(job_id)
    return by_job


def same(session: Session, project_id: str, config_sha256: str) -> str | None:
    """Return the id of the project's newest job with this `config_sha256`, None if it has none."""
    statement = select(Job.id).where(Job.project_id == project_id, Job.config_sha256 == config_sha256)
    return session.scalar(statement.order_by(Job.id.desc()).limit(1))


def runs(session: Session, job: Job, limit: int) -> Sequence[Job]:
    """Return the newest completed jobs with a job's recipe and name, or input if it has no name; newest first."""
    named = Job.name == job.name if job.name else Job.name.is_(None) & (Job.input_name == job.input_name)
    alike = Job.project_id == job.project_id, Job.recipe == job.recipe, Job.parent_id.is_(None), named
    statement = select(Job).where(*alike, Job.status == "completed").order_by(Job.id.desc()).limit(limit)
    return session.scalars(statement).all()


class PlanGroup(NamedTuple):
    """A segment of stage `number`, and the row group with its requests."""

    number: int
    stage: str
    batch_id: str
    segment_id: int
    plan_sha256: str
    row_group: int


def plan_groups(session: Session, job_id: str, *, unfinished: bool = False) -> list[PlanGroup]:
    """Return a job's segments, stage by stage; with `unfinished` those not ended."""
    statement = (
        select(JobStage.number, JobStage.name, JobStage.batch_id, Segment.id, Segment.plan_sha256, Segment.row_group)
        .join(Segment, Segment.batch_id == JobStage.batch_id)
        .where(JobStage.job_id == job_id, Segment.plan_sha256.is_not(None))
        .order_by(JobStage.number, Segment.number)
    )
    if unfinished:
        statement = statement.where(Segment.state != "done")
    return [PlanGroup._make(row) for row in session.execute(statement)]
