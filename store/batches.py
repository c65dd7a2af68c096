"""Batches: their life, and what is special to them."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlalchemy import Select, and_, case, delete, func, or_, select, update
from sqlalchemy.orm import Session

from batchyard.errors import ConflictError, RequestError
from batchyard.latency import Latencies
from batchyard.statuses import PAUSABLE, RUNNING, TRANSITIONS, priority_name
from store import events, files
from store.database import changed
from store.keys import Principal
from store.leases import claim
from store.records import Artifact, Batch, File, Job, Segment, first_id, now
from store.segments import add as add_segments
from store.work.lifecycle import FINISHING_SECONDS, Lifecycle, refuse_stage

LATEST_SECONDS = 3600.0
PLAN = "its plan"
"""What has paused a batch whose sample is answered."""
NAME, DESCRIPTION = "name", "description"
"""The entries of the metadata that name and describe a batch: any client of OpenAI's API can set them."""
MAX_ENTRIES = 16
"""OpenAI's limit of entries of metadata."""


class Batches(Lifecycle[Batch]):
    def request_cancel(self, session: Session, work: Batch, by: Principal | None = None, **values: Any) -> bool:
        return super().request_cancel(session, work, by, open=False, **values)

    def give_up(self, session: Session) -> list[str]:
        """End each batch whose validation or finishing fails beyond its window or FINISHING_SECONDS. Return the ids."""
        ending_at = func.coalesce(Batch.cancelling_at, Batch.finalizing_at, Batch.created_at)
        deadline = case((~Batch.planned, Batch.expires_at), else_=ending_at + FINISHING_SECONDS)
        hopeless = self.hopeless(session, ("validating", "finalizing", "cancelling"), deadline)
        works = [(batch, "finished" if batch.planned else "validated") for batch in hopeless]
        return [batch.id for batch, work in works if self.fail(session, batch, work)]

    def expire(self, session: Session) -> list[str]:
        """Finalize every batch in progress whose completion window has passed. Return their ids.

        A client's that was open until then, with all its requests answered, is completed: nothing of it has expired.
        """
        is_answered = and_(Batch.open, Batch.job_id.is_(None), ~_unfinished().exists())
        overdue = select(Batch.id, is_answered).where(Batch.status == "in_progress", Batch.expires_at <= now())
        expired = []
        for batch_id, answered in session.execute(overdue).all():
            outcome = "completed" if answered else "expired"
            if self.transition(session, batch_id, "in_progress", "finalizing", outcome=outcome, open=False):
                expired.append(batch_id)
        return expired

    def any_ends(self, session: Session) -> bool:
        """True if a batch is ending, or all its segments are done, or those of its sample."""
        ending = select(Batch.id).where(Batch.status.in_(("finalizing", "cancelling")))
        return bool(session.scalar(select(or_(ending.exists(), _answered().exists(), _sampled().exists()))))

    def claim_validatable(self, session: Session, pause: float) -> list[str]:
        """Claim batches whose validation lost its message or its worker. Return their ids."""
        pending = and_(Batch.status.in_(("validating", "cancelling")), ~Batch.planned)
        return claim(session, Batch, pending, pause)

    def claim_finishable(self, session: Session, pause: float) -> list[str]:
        """Claim batches that are ending, planned, and without a running segment. Return their ids."""
        busy = select(Segment.id).where(Segment.batch_id == Batch.id, Segment.state.in_(("dispatched", "running")))
        ready = and_(Batch.status.in_(("finalizing", "cancelling")), Batch.planned, ~busy.exists())
        return claim(session, Batch, ready, pause)


BATCHES = Batches(Batch, "batch", TRANSITIONS, PAUSABLE, RUNNING)
# As functions, for those who deal with batches only.
repeated, get, by_ids, page, retries = BATCHES.repeated, BATCHES.get, BATCHES.by_ids, BATCHES.page, BATCHES.retries
transition, cancel, control = BATCHES.transition, BATCHES.cancel, BATCHES.control
request_cancel, reject, set_sla = BATCHES.request_cancel, BATCHES.reject, BATCHES.set_sla
artifacts, find_artifact, add_artifact = BATCHES.artifacts, BATCHES.find_artifact, BATCHES.add_artifact
expire, give_up, any_ends = BATCHES.expire, BATCHES.give_up, BATCHES.any_ends
claim_validatable, claim_finishable = BATCHES.claim_validatable, BATCHES.claim_finishable


def titles(session: Session, ids: Collection[str]) -> dict[str, str]:
    """Return by what people know batches, by id: the name of each, of a stage that of its job and of the stage."""
    rows = session.execute(
        select(Batch.id, Batch.name, Batch.stage, func.coalesce(Job.name, Job.recipe))
        .outerjoin(Job, Job.id == Batch.job_id)
        .where(Batch.id.in_(ids))
    )
    return {batch_id: f"{job}: {stage}" if stage else name or batch_id for batch_id, name, stage, job in rows}


def create(
    session: Session,
    batch: Batch,
    source: File,
    *,
    due_after: int | None = None,
    idempotency: tuple[str, str] | None = None,
) -> Batch:
    """Create a batch of an input file from its unsaved record, `validating`. An `open` one, without a file yet, runs.

    It is called by its metadata's `name`, else by the record's, else by the file's. It keeps the file's content by
    SHA-256 even if the file is deleted. `due_after`, `idempotency`: as `Lifecycle.create` takes them.
    """
    batch.name = (batch.request_metadata or {}).get(NAME) or batch.name or source.filename
    batch.input_file_id, batch.input_sha256 = source.id, source.sha256
    BATCHES.create(session, batch, due_after=due_after, idempotency=idempotency)
    if batch.open:
        # Nobody is sent a message of it, so there is none to wait for before it can be finished.
        transition(session, batch.id, "validating", "in_progress", planned=True, lease_expires_at=0.0)
        session.refresh(batch)
    return batch


def close(session: Session, by: Principal, batch_id: str) -> Batch:
    """Close an open batch, which ends with its last request. Raises NotFoundError; ConflictError for a job's batch."""
    batch = get(session, by.project_id, batch_id)
    refuse_stage(batch, "wait for")
    if changed(session, update(Batch).where(Batch.id == batch_id, Batch.open).values(open=False)):
        events.act(session, by, "batch.closed", batch)
    session.refresh(batch)
    return batch


def latest_latencies(session: Session, project_id: str | None, at: float) -> list[Latencies]:
    """Return latencies of batches that run, or began since LATEST_SECONDS before `at`."""
    recent = or_(Batch.status.in_(RUNNING), Batch.id > first_id("batch_", at - LATEST_SECONDS))
    statement = select(Batch.latencies).where(recent)
    if project_id is not None:
        statement = statement.where(Batch.project_id == project_id)
    return [latencies for latencies in session.scalars(statement) if latencies]


def change(
    session: Session, by: Principal, batch_id: str, order: Mapping[str, Any], metadata: Mapping[str, str | None]
) -> Batch:
    """Change a batch, and record what has changed.

    `order` has `priority`, and `completion_window` with the `expires_at` and `due_at` that follow from it; `metadata`
    the entries to set, None for those to remove. That of NAME is what people call the batch.

    Raises NotFoundError; ConflictError: the batch is a job's, or ending; RequestError: too many entries of metadata.
    """
    batch = get(session, by.project_id, batch_id)
    refuse_stage(batch, "change")
    # Its metadata is one value: of two changes at once the second has to see that of the first.
    session.refresh(batch, with_for_update={"key_share": True})
    entries = {**(batch.request_metadata or {}), **metadata}
    entries = {key: text for key, text in entries.items() if text is not None}
    values = {**order, "request_metadata": entries or None}
    if len(entries) > MAX_ENTRIES:
        message = f"The batch has {MAX_ENTRIES} entries of metadata already, and name and description are two more."
        raise RequestError(message, code="invalid_value", param="metadata")
    if NAME in metadata:
        source = files.find(session, batch.project_id, batch.input_file_id)
        values["name"] = metadata[NAME] or (source.filename if source else None)
    new = {name: value for name, value in values.items() if getattr(batch, name) != value}
    statement = update(Batch).where(Batch.id == batch_id)
    if new.keys() & order.keys():
        statement = statement.where(Batch.status.in_(PAUSABLE))
    if new and not changed(session, statement.values(**new)):
        session.refresh(batch)
        message = f"Cannot change the deadline or the priority of a batch with status '{batch.status}'."
        raise ConflictError(message, param="batch_id")
    if new:
        shown = {"metadata" if name == "request_metadata" else name: value for name, value in new.items()}
        if "priority" in shown:
            shown["priority"] = priority_name(shown["priority"])
        events.act(session, by, "batch.changed", batch, **shown)
    session.refresh(batch)
    return batch


def plan(
    session: Session,
    batch: Batch,
    *,
    plan_sha256: str,
    segments: Sequence[Segment],
    models: dict[str, dict[str, Any]],
    simulated: bool,
    refused: Mapping[int, str] = MappingProxyType({}),
    warnings: Sequence[Mapping[str, Any]] = (),
    sample_segments: int | None = None,
) -> None:
    """Record the plan of a validated batch, with its unsaved segments.

    `refused` has the result chunk of each segment whose requests were all refused, by number. The first
    `sample_segments` run first, then the batch is paused.
    """
    failed = add_segments(session, batch.id, segments, refused)
    values = {
        "planned": True,
        "plan_sha256": plan_sha256,
        "total": sum(segment.requests for segment in segments),
        "failed": failed,
        "models": models,
        "model": only_model(models),
        "simulated": simulated,
        "warnings": list(warnings),
        "attempts": 0,
        "attempt_error": None,
        "refused": failed,
        "sample_segments": sample_segments,
        "sampling": sample_segments is not None,
    }
    session.execute(update(Batch).where(Batch.id == batch.id).values(**values))
    transition(session, batch.id, "validating", "in_progress")  # no effect if it is cancelling


def only_model(models: Mapping[str, Any]) -> str | None:
    """Return the model of a batch with one, None of a batch with several."""
    return next(iter(models)) if len(models) == 1 else None


def set_model(session: Session, batch_id: str, model: str, config: dict[str, Any]) -> None:
    models = session.scalar(select(Batch.models).where(Batch.id == batch_id).with_for_update()) or {}
    session.execute(update(Batch).where(Batch.id == batch_id).values(models={**models, model: config}))


def end_running(session: Session) -> None:
    """Finalize every batch in progress whose segments are all done."""
    for batch_id in session.scalars(_answered()):
        transition(session, batch_id, "in_progress", "finalizing", outcome="completed")


def pause_sampled(session: Session) -> None:
    """Pause every batch whose sample is answered, until a client resumes it."""
    paused = {"paused_at": func.coalesce(Batch.paused_at, now()), "paused_by": PLAN}
    for batch in session.scalars(_sampled().with_for_update()).all():
        if changed(session, update(Batch).where(Batch.id == batch.id, Batch.sampling).values(sampling=False, **paused)):
            events.record(session, batch, "batch.planned")


def _sampled() -> Select[Batch]:
    """Select the batches whose sample is answered, and nothing else of which has run."""
    unanswered = _unfinished().where(Segment.number < Batch.sample_segments)
    return select(Batch).where(Batch.status == "in_progress", Batch.sampling, ~unanswered.exists())


def _answered() -> Select[str]:
    """Select ids of batches in progress that are answered and get no more segments."""
    return select(Batch.id).where(Batch.status == "in_progress", ~Batch.open, ~_unfinished().exists())


def _unfinished() -> Select[int]:
    return select(Segment.id).where(Segment.batch_id == Batch.id, Segment.state != "done")


def set_verification(session: Session, by: Batch, batch_id: str, summary: Mapping[str, Any]) -> None:
    """Keep what the batch `by` has shown of another one of its project, if that is still there."""
    shown = {**summary, "batch_id": by.id, "at": now()}
    verified = update(Batch).where(Batch.id == batch_id, Batch.project_id == by.project_id)
    session.execute(verified.values(verification=shown))


def set_infeasible(session: Session, batch: Batch, *, infeasible: bool) -> None:
    """Set whether a batch in progress runs after those that can meet their deadline."""
    session.execute(update(Batch).where(Batch.id == batch.id).values(infeasible=infeasible))


def set_input(session: Session, batch: Batch, name: str, sha256: str, size: int) -> None:
    if batch.input_file_id:
        file = session.get_one(File, batch.input_file_id)
        file.sha256, file.bytes = sha256, size
    else:
        batch.input_file_id = files.create_output(session, batch, name, sha256=sha256, size=size).id
    batch.input_sha256 = sha256


def remove_artifacts(session: Session, batch: Batch, names: Collection[str]) -> None:
    named = (Artifact.batch_id == batch.id, Artifact.name.in_(names))
    file_ids = session.scalars(delete(Artifact).where(*named).returning(Artifact.file_id)).all()
    session.execute(update(File).where(File.id.in_(file_ids)).values(expires_at=now()))
