"""Batches: create and find them, and change their status by the table of allowed transitions."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

from sqlalchemy import Select, and_, case, delete, func, or_, select, update
from sqlalchemy.orm import Session

from batchyard import durations
from batchyard.errors import ConflictError, NotFoundError, RequestError
from batchyard.latency import Latencies
from batchyard.statuses import PAUSABLE, RUNNING, TERMINAL, TRANSITIONS, priority_name
from store import events, files, listing
from store.database import changed
from store.keys import Caller
from store.leases import ATTEMPTS, claim
from store.records import Artifact, Batch, File, Job, ResultChunk, Segment, Sla, first_id, new_id, now
from store.speeds import RequestClass


class PlannedSegment(NamedTuple):
    """A segment of a plan. `bytes` counts its request bodies."""

    model: str
    requests: int
    bytes: int = 0
    request_class: RequestClass = "decode"


# The message of a new batch is sent again if no worker has taken it by then.
MESSAGE_SECONDS = 30.0
FINISHING_SECONDS = 86400.0
"""Seconds that finishing may wait for a part of the deployment that is away."""
LATEST_SECONDS = 3600.0
NAME, DESCRIPTION = "name", "description"
"""The entries of the metadata that name and describe a batch: any client of OpenAI's API can set them."""
MAX_ENTRIES = 16
"""OpenAI's limit of entries of metadata."""
ENDED_AT = func.coalesce(Batch.completed_at, Batch.expired_at, Batch.cancelled_at, Batch.failed_at)
"""The end of an ended batch, in SQL."""


def create(
    session: Session,
    project_id: str,
    *,
    endpoint: str,
    completion_window: str,
    input_file: File,
    metadata: dict[str, str] | None,
    name: str | None = None,
    post_process: list[dict[str, Any]],
    output_expires_after: int | None,
    due_after: int | None = None,
    retry_of: str | None = None,
    idempotency: tuple[str, str] | None = None,
    on_invalid: str = "fail",
    priority: int = 0,
) -> Batch:
    """Create a batch, `validating`. It keeps its input's content by SHA-256 even if the file is deleted.

    Args:
        name: what it is called if its metadata has no `name`; None for its input file's name.
        due_after: seconds from now until it is due; None for the end of its window.
        idempotency: the client's key and the SHA-256 of its request, see `repeated`.
        on_invalid: `fail`, or `skip` lines that are no valid requests.
    """
    created_at = now()
    expires_at = created_at + durations.seconds(completion_window)
    batch = Batch(
        id=new_id("batch_"),
        project_id=project_id,
        name=(metadata or {}).get(NAME) or name or input_file.filename,
        endpoint=endpoint,
        completion_window=completion_window,
        input_file_id=input_file.id,
        input_sha256=input_file.sha256,
        status="validating",
        created_at=created_at,
        expires_at=expires_at,
        due_at=expires_at if due_after is None else created_at + due_after,
        request_metadata=metadata,
        post_process=post_process,
        output_expires_after=output_expires_after,
        retry_of=retry_of,
        on_invalid=on_invalid,
        priority=priority,
        idempotency_key=idempotency[0] if idempotency else None,
        idempotency_sha256=idempotency[1] if idempotency else None,
        lease_expires_at=time.time() + MESSAGE_SECONDS,
    )
    session.add(batch)
    session.flush()
    return batch


def repeated(session: Session, project_id: str, idempotency: tuple[str, str]) -> Batch | None:
    """Return the batch that was created with this idempotency key, or None.

    Raises:
        ConflictError: that batch came from another request.
    """
    key, sha256 = idempotency
    batch = session.scalar(select(Batch).where(Batch.project_id == project_id, Batch.idempotency_key == key))
    if batch is not None and batch.idempotency_sha256 != sha256:
        raise ConflictError(
            "This Idempotency-Key was used with another body; use a new key for a new batch.",
            code="idempotency_key_reused",
        )
    return batch


def bytes_in_flight(session: Session, project_id: str) -> int:
    """Return the input bytes of the project's unfinished batches."""
    statement = (
        select(func.coalesce(func.sum(File.bytes), 0))
        .join(Batch, and_(Batch.input_file_id == File.id, Batch.project_id == File.project_id))
        .where(Batch.project_id == project_id, Batch.status.in_(RUNNING))
    )
    return int(session.scalar(statement) or 0)


def retries(session: Session, batch_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the ids of the batches that retry each batch, by its id."""
    retry_ids: dict[str, list[str]] = {batch_id: [] for batch_id in batch_ids}
    rows = session.execute(select(Batch.retry_of, Batch.id).where(Batch.retry_of.in_(batch_ids)).order_by(Batch.id))
    for batch_id, retry_id in rows:
        retry_ids[str(batch_id)].append(retry_id)
    return retry_ids


def get(session: Session, project_id: str, batch_id: str) -> Batch:
    """Return a batch. Raises NotFoundError if the project has no such batch."""
    batch = session.scalar(select(Batch).where(Batch.id == batch_id, Batch.project_id == project_id))
    if batch is None:
        raise NotFoundError(f"No batch found with id '{batch_id}'.", param="batch_id")
    return batch


def some(session: Session, project_id: str, batch_ids: Collection[str]) -> Sequence[Batch]:
    """Return those of the project's batches that have one of these ids, in any order."""
    return session.scalars(select(Batch).where(Batch.project_id == project_id, Batch.id.in_(batch_ids))).all()


def page(
    session: Session, project_id: str, *, after: str | None, limit: int, status: str | None = None
) -> tuple[Sequence[Batch], bool]:
    """Return the project's batches after the one with id `after`, newest first, and True if there are more.

    Args:
        status: only batches with this status.

    Raises:
        RequestError: `after` is not one of the project's.
    """
    own, shown = Batch.project_id == project_id, None if status is None else Batch.status == status
    return listing.page(session, Batch, own, after=after, limit=limit, descending=True, shown=shown)


def latest_latencies(session: Session, project_id: str | None, at: float) -> list[Latencies]:
    """Return the latencies of the batches that have not ended or were created in the LATEST_SECONDS before `at`.

    Args:
        project_id: of this project only; None for all.
    """
    recent = or_(Batch.status.in_(RUNNING), Batch.id > first_id("batch_", at - LATEST_SECONDS))
    statement = select(Batch.latencies).where(recent)
    if project_id is not None:
        statement = statement.where(Batch.project_id == project_id)
    return [latencies for latencies in session.scalars(statement) if latencies]


def transition(session: Session, batch_id: str, before: str, after: str, **values: Any) -> bool:
    """Compare-and-set `status` from `before` to `after`, with its timestamp. False if it was not `before`.

    A terminal status emits an event, unless the batch is a job's.
    """
    if after not in TRANSITIONS[before]:
        raise ValueError(f"a batch never goes from {before} to {after}")
    values = {"status": after, f"{after}_at": now(), **values}
    if after not in PAUSABLE:
        values |= {"paused_at": None, "paused_by": None}
    if not changed(session, update(Batch).where(Batch.id == batch_id, Batch.status == before).values(**values)):
        return False
    if after in TERMINAL:
        batch = session.get_one(Batch, batch_id)
        if batch.job_id is None:
            events.record(session, batch, f"batch.{after}")
    return True


def cancel(session: Session, project_id: str, batch_id: str, by: Caller | None = None) -> Batch:
    """Request that a batch stops. Its answers are kept. Cancelling it twice changes nothing.

    Args:
        by: who requests it; None for a schedule.

    Raises:
        NotFoundError: the project has no such batch.
        ConflictError: the batch has ended, or is a job's.
    """
    batch = get(session, project_id, batch_id)
    refuse_stage(batch, "cancel")
    if request_cancel(session, batch):
        events.act(session, by, "batch.cancelling", batch)
    return batch


def pause(session: Session, by: Caller, batch_id: str) -> Batch:
    """Let no more segments of a batch start, and those that run send nothing more. Its window goes on.

    Pausing it twice changes nothing.

    Raises:
        NotFoundError: the project has no such batch.
        ConflictError: it has all its answers, is ending, or is a job's.
    """
    return _set_pause(session, by, batch_id, "pause")


def resume(session: Session, by: Caller, batch_id: str) -> Batch:
    """Let a paused batch go on. It changes nothing if the batch is not paused. Raises as `pause` does."""
    return _set_pause(session, by, batch_id, "resume")


def _set_pause(session: Session, by: Caller, batch_id: str, verb: Literal["pause", "resume"]) -> Batch:
    batch = get(session, by.project_id, batch_id)
    refuse_stage(batch, verb)
    set_pause(session, by, batch, verb, PAUSABLE)
    return batch


def set_pause(
    session: Session, by: Caller, record: Batch | Job, verb: Literal["pause", "resume"], statuses: Collection[str]
) -> dict[str, Any]:
    """Pause or resume a batch or a job that has one of `statuses`. Return the values that are new.

    Raises:
        ConflictError: it has another status.
    """
    kind, name = type(record), "batch" if isinstance(record, Batch) else "job"
    pausing = verb == "pause"
    values = {"paused_at": now(), "paused_by": by.name} if pausing else {"paused_at": None, "paused_by": None}
    before = kind.paused_at.is_(None) if pausing else kind.paused_at.is_not(None)
    own = update(kind).where(kind.id == record.id, kind.status.in_(statuses), before).values(**values)
    done = changed(session, own)
    if done:
        events.act(session, by, cast(events.Action, f"{name}.{verb}d"), record)
    session.refresh(record)
    if record.status not in statuses:
        raise ConflictError(f"Cannot {verb} a {name} with status '{record.status}'.", param=f"{name}_id")
    return values if done else {}


def change(
    session: Session, by: Caller, batch_id: str, order: Mapping[str, Any], metadata: Mapping[str, str | None]
) -> Batch:
    """Change a batch, and record what has changed.

    Args:
        order: `priority`, and `completion_window` with the `expires_at` and `due_at` that follow from it.
        metadata: entries to set; None removes one. That of NAME is what people call the batch.

    Raises:
        NotFoundError: the project has no such batch.
        ConflictError: the batch is a job's; or it has an `order` no more, since it is ending.
        RequestError: it would have more than MAX_ENTRIES entries of metadata.
    """
    batch = get(session, by.project_id, batch_id)
    refuse_stage(batch, "change")
    # Its metadata is one value: of two changes at once the second has to see that of the first.
    session.refresh(batch, with_for_update={"key_share": True})
    entries = {**(batch.request_metadata or {}), **metadata}
    values = dict(order) | {
        "request_metadata": {key: text for key, text in entries.items() if text is not None} or None
    }
    if len(values["request_metadata"] or ()) > MAX_ENTRIES:
        message = f"The batch has {MAX_ENTRIES} entries of metadata already, and name and description are two more."
        raise RequestError(message, code="invalid_value", param="metadata")
    if NAME in metadata:
        source = files.find(session, batch.project_id, batch.input_file_id)
        values["name"] = metadata[NAME] or (source.filename if source else None)
    new = {name: value for name, value in values.items() if getattr(batch, name) != value}
    own = update(Batch).where(Batch.id == batch_id)
    if new.keys() & order.keys():
        own = own.where(Batch.status.in_(PAUSABLE))
    if new and not changed(session, own.values(**new)):
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


def refuse_stage(batch: Batch, action: str) -> None:
    """Raise ConflictError if the batch is a job's: the job alone decides what becomes of it."""
    if batch.job_id is not None:
        message = f"Batch '{batch.id}' is stage '{batch.stage}' of job '{batch.job_id}'; {action} the job."
        raise ConflictError(message, param="batch_id")


def request_cancel(session: Session, batch: Batch) -> bool:
    """Request that a batch stops, and gets no more segments. False if that was requested before.

    Raises:
        ConflictError: it has ended.
    """
    first = False
    while batch.status not in ("cancelling", "cancelled"):
        if batch.status in TERMINAL:
            raise ConflictError(f"Cannot cancel a batch with status '{batch.status}'.", param="batch_id")
        # Validation continues under its lease, since only it knows the lines of the batch. A batch that has all its
        # answers keeps its outcome.
        values = {} if batch.outcome == "completed" else {"outcome": "cancelled"}
        first = transition(session, batch.id, batch.status, "cancelling", open=False, **values)
        session.refresh(batch)
    return first


def plan(
    session: Session,
    batch: Batch,
    *,
    plan_sha256: str,
    segments: Sequence[PlannedSegment],
    models: dict[str, dict[str, Any]],
    simulated: bool,
    refused: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """Record the plan of a validated batch.

    Args:
        segments: row group by row group.
        refused: SHA-256 of the result chunk of each segment whose requests were all refused, by number.
    """
    records = [
        Segment(
            batch_id=batch.id,
            number=number,
            **segment._asdict(),
            state="done" if number in refused else "pending",
        )
        for number, segment in enumerate(segments)
    ]
    session.add_all(records)
    session.flush()
    chunks = [
        ResultChunk(
            batch_id=batch.id,
            segment_id=record.id,
            sha256=refused[record.number],
            failed=record.requests,
            created_at=time.time(),
        )
        for record in records
        if record.number in refused
    ]
    session.add_all(chunks)
    values = {
        "planned": True,
        "plan_sha256": plan_sha256,
        "total": sum(segment.requests for segment in segments),
        "failed": sum(chunk.failed for chunk in chunks),
        "models": models,
        "model": next(iter(models)) if len(models) == 1 else None,
        "simulated": simulated,
        "attempts": 0,
        "attempt_error": None,
    }
    session.execute(update(Batch).where(Batch.id == batch.id).values(**values))
    transition(session, batch.id, "validating", "in_progress")  # no effect if it is cancelling


def set_model(session: Session, batch_id: str, model: str, config: dict[str, Any]) -> None:
    """Replace the configuration of one of a batch's models."""
    models = session.scalar(select(Batch.models).where(Batch.id == batch_id).with_for_update()) or {}
    session.execute(update(Batch).where(Batch.id == batch_id).values(models={**models, model: config}))


def reject(session: Session, batch_id: str, errors: list[dict[str, Any]]) -> None:
    """End a batch whose input is invalid, with its errors."""
    if not transition(session, batch_id, "validating", "failed", errors=errors):
        transition(session, batch_id, "cancelling", "cancelled", errors=errors)


def give_up(session: Session) -> list[str]:
    """End every batch whose validation or finishing fails without end. Return their ids.

    Either has failed ATTEMPTS times in a row, or it fails and its time is over: the completion window for validation,
    FINISHING_SECONDS for finishing.
    """
    ending_at = func.coalesce(Batch.cancelling_at, Batch.finalizing_at, Batch.created_at)
    deadline = case((~Batch.planned, Batch.expires_at), else_=ending_at + FINISHING_SECONDS)
    hopeless = or_(Batch.attempts >= ATTEMPTS, and_(Batch.attempt_error.is_not(None), deadline <= time.time()))
    statement = select(Batch).where(Batch.status.in_(("validating", "finalizing", "cancelling")), hopeless)
    ended = []
    for batch in session.scalars(statement.with_for_update()).all():
        work = "finished" if batch.planned else "validated"
        if batch.attempts >= ATTEMPTS:
            message = f"The batch could not be {work} in {batch.attempts} attempts: {batch.attempt_error}"
        else:
            message = f"The batch was not {work} in time; the last attempt failed: {batch.attempt_error}"
        code = {"validated": "validation_failed", "finished": "finishing_failed"}[work]
        errors = [{"code": code, "line": None, "message": message, "param": None}]
        after = "cancelled" if batch.status == "cancelling" else "failed"
        values = {"errors": errors, "epoch": Batch.epoch + 1, "holder": None}
        if transition(session, batch.id, batch.status, after, **values):
            ended.append(batch.id)
    return ended


def expire(session: Session) -> list[str]:
    """Finalize every batch in progress whose completion window has passed. Return their ids."""
    overdue = session.scalars(select(Batch.id).where(Batch.status == "in_progress", Batch.expires_at <= now()))
    return [
        batch_id
        for batch_id in overdue
        if transition(session, batch_id, "in_progress", "finalizing", outcome="expired", open=False)
    ]


def end_running(session: Session) -> None:
    """Finalize every batch in progress whose segments are all done."""
    for batch_id in session.scalars(_answered()):
        transition(session, batch_id, "in_progress", "finalizing", outcome="completed")


def any_ends(session: Session) -> bool:
    """True if a batch is ending or all its segments are done."""
    ending = select(Batch.id).where(Batch.status.in_(("finalizing", "cancelling")))
    return session.scalar(ending.limit(1)) is not None or session.scalar(_answered().limit(1)) is not None


def _answered() -> Select[str]:
    """Select the ids of batches in progress whose segments are all done, and that get no more of them."""
    unfinished = select(Segment.id).where(Segment.batch_id == Batch.id, Segment.state != "done")
    return select(Batch.id).where(Batch.status == "in_progress", ~Batch.open, ~unfinished.exists())


def claim_validatable(session: Session, pause: float) -> list[str]:
    """Claim batches whose validation lost its message or its worker. Return their ids.

    A claimed batch is not returned again for `pause` seconds.
    """
    pending = and_(Batch.status.in_(("validating", "cancelling")), ~Batch.planned)
    return claim(session, Batch, pending, pause)


def claim_finishable(session: Session, pause: float) -> list[str]:
    """Claim batches that can be finished now: ending, planned, and without a running segment. Return their ids.

    A claimed batch is not returned again for `pause` seconds, so that one caller starts its finishing.
    """
    busy = select(Segment.id).where(Segment.batch_id == Batch.id, Segment.state.in_(("dispatched", "running")))
    ready = and_(Batch.status.in_(("finalizing", "cancelling")), Batch.planned, ~busy.exists())
    return claim(session, Batch, ready, pause)


def set_infeasible(session: Session, batch: Batch, *, infeasible: bool) -> None:
    """Set whether a batch in progress runs after those that can meet their deadline."""
    session.execute(update(Batch).where(Batch.id == batch.id).values(infeasible=infeasible))


def set_sla(session: Session, batch: Batch, state: Sla, **data: Any) -> bool:
    """Compare-and-set the SLA state of a batch that has not ended.

    Returns:
        True the first time a state is reached, unless the batch is a job's. An event with `data` is emitted then.
    """
    unchanged = (Batch.id == batch.id, Batch.sla == batch.sla, Batch.status.in_(RUNNING))
    if not changed(session, update(Batch).where(*unchanged).values(sla=state)):
        return False
    batch.sla = state
    if batch.job_id is not None:
        return False
    type_ = f"batch.{state}"
    if events.recorded(session, batch, type_):
        return False
    events.record(session, batch, type_, **data)
    return True


def artifacts(session: Session, batch_ids: Sequence[str]) -> dict[str, list[tuple[Artifact, File]]]:
    """Return the artifacts of each batch, sorted by name, by batch id."""
    rows = session.execute(
        select(Artifact, File)
        .join(File, File.id == Artifact.file_id)
        .where(Artifact.batch_id.in_(batch_ids))
        .order_by(Artifact.name)
    )
    by_batch: dict[str, list[tuple[Artifact, File]]] = {batch_id: [] for batch_id in batch_ids}
    for artifact, file in rows:
        by_batch[artifact.batch_id].append((artifact, file))
    return by_batch


def add_artifact(session: Session, batch: Batch, name: str, sha256: str, size: int, lines: int | None) -> File:
    """Create a file for content and make it an artifact of the batch. An existing one of that name gets the content."""
    existing = session.scalar(
        select(File)
        .join(Artifact, Artifact.file_id == File.id)
        .where(Artifact.batch_id == batch.id, Artifact.name == name)
    )
    if existing is not None:
        existing.sha256, existing.bytes = sha256, size
        return existing
    file = files.create_output(session, batch, name, sha256=sha256, size=size)
    session.add(Artifact(batch_id=batch.id, name=name, file_id=file.id, lines=lines))
    return file


def set_input(session: Session, batch: Batch, name: str, sha256: str, size: int) -> None:
    """Create the input file of a job's batch, or replace its content."""
    if batch.input_file_id:
        file = session.get_one(File, batch.input_file_id)
        file.sha256, file.bytes = sha256, size
    else:
        batch.input_file_id = files.create_output(session, batch, name, sha256=sha256, size=size).id
    batch.input_sha256 = sha256


def remove_artifacts(session: Session, batch: Batch, names: Collection[str]) -> None:
    """Remove artifacts of a batch by name, and delete their files."""
    own = (Artifact.batch_id == batch.id, Artifact.name.in_(names))
    file_ids = session.scalars(delete(Artifact).where(*own).returning(Artifact.file_id)).all()
    session.execute(update(File).where(File.id.in_(file_ids)).values(expires_at=now()))
