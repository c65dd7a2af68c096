"""Lifecycle: create and find batches and jobs, and change their status by a table of allowed transitions."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

from sqlalchemy import ColumnElement, and_, func, or_, select, true, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from batchyard import durations
from batchyard.errors import ConflictError, NotFoundError
from batchyard.statuses import TERMINAL
from batchyard.wording import FLAWS
from store import events, files, listing
from store.database import changed
from store.keys import Principal
from store.leases import ATTEMPTS
from store.records import Artifact, Batch, File, Job, JobArtifact, Sla, added, new_id, now
from store.work import traces

Record = TypeVar("Record", Batch, Job)
AnyArtifact: TypeAlias = Artifact | JobArtifact
Verb = Literal["cancel", "pause", "resume"]

MESSAGE_SECONDS = 30.0
"""The message of new work is sent again if no worker has taken it by then."""
FINISHING_SECONDS = 86400.0
"""Seconds that finishing may wait for a part of the deployment that is away."""
_COUNTS = ("total", "completed", "failed", "expired", "cancelled", *FLAWS)
"""Columns of ended work that its event has."""
_FAILURES = {"validated": "validation_failed", "continued": "advance_failed", "finished": "finishing_failed"}
"""The code of the error of work that could not be so."""


def ended_at(record: type[Batch] | type[Job]) -> ColumnElement[int]:
    return func.coalesce(record.completed_at, record.expired_at, record.cancelled_at, record.failed_at)


@dataclass(frozen=True)
class Lifecycle(Generic[Record]):
    """What the lives of batches and jobs share. A `pausable` status is one in which requests may not be sent yet."""

    record: type[Record]
    noun: Literal["batch", "job"]
    transitions: Mapping[str, frozenset[str]]
    pausable: Collection[str]
    running: Sequence[str]

    def create(
        self,
        session: Session,
        work: Record,
        *,
        due_after: int | None = None,
        idempotency: tuple[str, str] | None = None,
    ) -> Record:
        """Create work from its unsaved record, `waiting` if it depends on others, else `validating`.

        `expires_at` and `due_at`, if the record has none, follow from its window, or `due_after` seconds. `idempotency`
        is the client's key and the SHA-256 of its request, see `repeated`.
        """
        work.id, work.created_at = new_id(f"{self.noun}_"), now()
        if work.expires_at is None:
            work.expires_at = work.created_at + durations.seconds(work.completion_window)
        if work.due_at is None:
            work.due_at = work.expires_at if due_after is None else work.created_at + due_after
        work.status = "waiting" if isinstance(work, Job) and work.depends_on else "validating"
        work.idempotency_key, work.idempotency_sha256 = idempotency or (None, None)
        work.lease_expires_at = time.time() + MESSAGE_SECONDS
        return added(session, work)

    def repeated(self, session: Session, project_id: str, idempotency: tuple[str, str]) -> Record | None:
        """Return what this idempotency key created, or None. Raises ConflictError if it was for another request."""
        record, (key, sha256) = self.record, idempotency
        work = session.scalar(select(record).where(record.project_id == project_id, record.idempotency_key == key))
        if work is not None and work.idempotency_sha256 != sha256:
            raise ConflictError(
                "This request conflicts with an earlier one: its Idempotency-Key was used with another body. "
                f"Use a new key for a new {self.noun}.",
                code="idempotency_key_reused",
            )
        return work

    def get(self, session: Session, project_id: str, work_id: str) -> Record:
        """Return a batch or a job. Raises NotFoundError if the project has none with that id."""
        record = self.record
        work = session.scalar(select(record).where(record.id == work_id, record.project_id == project_id))
        if work is None:
            raise NotFoundError(f"No {self.noun} found with id '{work_id}'.", param=f"{self.noun}_id")
        return work

    def by_ids(self, session: Session, project_id: str, ids: Collection[str]) -> Sequence[Record]:
        """Return those of the project that have one of these ids, in any order."""
        record = self.record
        return session.scalars(select(record).where(record.project_id == project_id, record.id.in_(ids))).all()

    def page(
        self,
        session: Session,
        project_id: str,
        *,
        after: str | None,
        limit: int,
        newest_first: bool = True,
        **columns: str | None,
    ) -> tuple[Sequence[Record], bool]:
        """Return the project's with these values of columns, None for any, and if more follow. Raises RequestError."""
        record = self.record
        shown = and_(true(), *(getattr(record, name) == value for name, value in columns.items() if value is not None))
        scope = record.project_id == project_id
        return listing.page(session, record, scope, after=after, limit=limit, descending=newest_first, shown=shown)

    def retries(self, session: Session, ids: Sequence[str], *conditions: ColumnElement[bool]) -> dict[str, list[str]]:
        """Return the ids of what retries each batch or job, oldest first, by its id."""
        record = self.record
        by_id: dict[str, list[str]] = {work_id: [] for work_id in ids}
        statement = select(record.retry_of, record.id).where(record.retry_of.in_(ids), *conditions)
        for retried_id, work_id in session.execute(statement.order_by(record.id)):
            by_id[str(retried_id)].append(work_id)
        return by_id

    def transition(self, session: Session, work_id: str, before: str, after: str, **values: Any) -> bool:
        """Compare-and-set `status`, with its timestamp, and emit the event of an end. False if it was not `before`."""
        if after not in self.transitions[before]:
            raise ValueError(f"a {self.noun} never goes from {before} to {after}")
        record = self.record
        values = {"status": after, **values}
        if after != "validating":
            values[f"{after}_at"] = now()
        if before == "in_progress":
            values["attempt_error"] = None  # of its segments
        if after not in self.pausable:
            values |= {"paused_at": None, "paused_by": None}
        statement = update(record).where(record.id == work_id, record.status == before).values(**values)
        if not changed(session, statement):
            return False
        if after in TERMINAL:
            work = session.get_one(record, work_id)
            traces.write_end(session, work, after)
            if not _is_stage(work):
                counted = {name: getattr(work, name) for name in _COUNTS if hasattr(work, name)}
                events.record(session, work, f"{self.noun}.{after}", counts=counted)
        return True

    def cancel(self, session: Session, project_id: str, work_id: str, by: Principal | None = None) -> Record:
        """Request that work stops. Cancelling it twice changes nothing. Raises NotFoundError, ConflictError."""
        work = self.get(session, project_id, work_id)
        refuse_stage(work, "cancel")
        self.request_cancel(session, work, by)
        return work

    def request_cancel(self, session: Session, work: Record, by: Principal | None = None, **values: Any) -> bool:
        """Request that work stops. False if that was requested before. Raises ConflictError if it has ended."""
        while work.status not in ("cancelling", "cancelled"):
            if work.status in TERMINAL:
                raise self._conflict("cancel", work)
            # Validation continues under its lease, since only it knows what the work is. Work that is all done keeps
            # its outcome.
            outcome = {} if work.outcome == "completed" else {"outcome": "cancelled"}
            first = self.transition(session, work.id, work.status, "cancelling", **values, **outcome)
            session.refresh(work)  # if it is not the first, its status is another by now
            if first:
                events.act(session, by, cast(events.Action, f"{self.noun}.cancelling"), work)
                return True
        return False

    def _conflict(self, verb: Verb, work: Record) -> ConflictError:
        return ConflictError(f"Cannot {verb} a {self.noun} with status '{work.status}'.", param=f"{self.noun}_id")

    def _change_pause(
        self, session: Session, by: Principal, work: Record, verb: Literal["pause", "resume"]
    ) -> dict[str, Any]:
        record, pausing = self.record, verb == "pause"
        values = {"paused_at": now(), "paused_by": by.name} if pausing else {"paused_at": None, "paused_by": None}
        before = record.paused_at.is_(None) if pausing else record.paused_at.is_not(None)
        statement = update(record).where(record.id == work.id, record.status.in_(self.pausable), before)
        done = changed(session, statement.values(**values))
        if done:
            events.act(session, by, cast(events.Action, f"{self.noun}.{verb}d"), work)
        session.refresh(work)
        if work.status not in self.pausable:
            raise self._conflict(verb, work)
        return values if done else {}

    def control(self, session: Session, by: Principal, work_id: str, verb: Verb) -> Record:
        """Cancel, pause or resume work. Doing so twice changes nothing. Raises NotFoundError, ConflictError."""
        if verb == "cancel":
            return self.cancel(session, by.project_id, work_id, by)
        work = self.get(session, by.project_id, work_id)
        refuse_stage(work, verb)
        self._change_pause(session, by, work, verb)
        return work

    def set_sla(self, session: Session, work: Record, state: Sla, **data: Any) -> bool:
        """Compare-and-set the SLA state of work that has not ended.

        True the first time a state is reached, unless it is a job's batch. An event with `data` is emitted then.
        """
        record, type_ = self.record, f"{self.noun}.{state}"
        unchanged = (record.id == work.id, record.sla == work.sla, record.status.in_(self.running))
        if not changed(session, update(record).where(*unchanged).values(sla=state)):
            return False
        work.sla = state
        if _is_stage(work) or events.recorded(session, work, type_):
            return False
        events.record(session, work, type_, **data)
        return True

    def reject(self, session: Session, work_id: str, errors: list[dict[str, Any]]) -> None:
        """End work whose input is invalid, with its errors. It does nothing if the window has passed meanwhile."""
        if not self.transition(session, work_id, "validating", "failed", errors=errors):
            self.transition(session, work_id, "cancelling", "cancelled", errors=errors)

    def hopeless(self, session: Session, statuses: Collection[str], deadline: ColumnElement[Any]) -> Sequence[Record]:
        """Return what has one of these statuses and fails without end, locked.

        It has failed ATTEMPTS times in a row, or it fails and its `deadline` (Unix seconds) has passed.
        """
        record = self.record
        late = and_(record.attempt_error.is_not(None), deadline <= time.time())
        statement = select(record).where(record.status.in_(statuses), or_(record.attempts >= ATTEMPTS, late))
        return session.scalars(statement.with_for_update()).all()

    def fail(self, session: Session, work: Record, verb: str, after: str | None = None, **values: Any) -> bool:
        """End work that could not be `verb` (_FAILURES); its holder cannot write. False if ended.

        `after`: the status that it gets; None for that of its end.
        """
        if work.attempts >= ATTEMPTS:
            message = f"The {self.noun} could not be {verb} in {work.attempts} attempts: {work.attempt_error}"
        else:
            message = f"The {self.noun} was not {verb} in time; the last attempt failed: {work.attempt_error}"
        error = {"code": _FAILURES[verb], "line": None, "message": message, "param": None}
        values |= {"errors": [*(work.errors or []), error], "epoch": self.record.epoch + 1, "holder": None}
        end = "cancelled" if work.status == "cancelling" else "failed"
        return self.transition(session, work.id, work.status, after or end, **values)

    def artifacts(self, session: Session, ids: Sequence[str]) -> dict[str, list[tuple[AnyArtifact, File]]]:
        return artifacts_of(session, self.record, ids)

    def find_artifact(self, session: Session, project_id: str, work_id: str, name: str) -> File | None:
        """Return the artifact of that name of ended work of the project, or None. Its content is final."""
        record, (artifact, owner) = self.record, artifact_table(self.record)
        ended = (owner == work_id, artifact.name == name, record.status.in_(TERMINAL))
        statement = select(File).join(artifact, artifact.file_id == File.id).join(record, record.id == owner)
        return session.scalar(statement.where(*ended, File.project_id == project_id, files.live(now())))

    def add_artifact(
        self, session: Session, work: Record, name: str, sha256: str, size: int, lines: int | None
    ) -> File:
        """Create a file for content and make it an artifact of a batch or a job.

        An existing one of that name gets the content while the work goes on. The files of work that has ended are
        final, so the artifact gets a new file then.
        """
        artifact, owner = artifact_table(self.record)
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


def artifacts_of(
    session: Session, record: type[Batch] | type[Job], ids: Sequence[str]
) -> dict[str, list[tuple[AnyArtifact, File]]]:
    artifact, owner = artifact_table(record)
    statement = select(owner, artifact, File).join(File, File.id == artifact.file_id)
    by_id: dict[str, list[tuple[AnyArtifact, File]]] = {owner_id: [] for owner_id in ids}
    for owner_id, row, file in session.execute(statement.where(owner.in_(ids)).order_by(artifact.name)):
        by_id[owner_id].append((row, file))
    return by_id


def named_files(session: Session, ids: Iterable[str | None], name: str) -> dict[str, dict[str, str] | None]:
    """Return id and SHA-256 of the artifact `name` of batches and jobs, by their ids; None for one without."""
    found: dict[str, dict[str, str] | None] = dict.fromkeys(filter(None, ids))
    records: Sequence[type[Batch] | type[Job]] = (Batch, Job) if found else ()
    for artifact, owner in map(artifact_table, records):
        statement = select(owner, File.id, File.sha256).join(File, File.id == artifact.file_id)
        for owner_id, file_id, sha256 in session.execute(statement.where(owner.in_(found), artifact.name == name)):
            found[owner_id] = {"file_id": file_id, "sha256": sha256}
    return found


def artifact_table(record: type[Batch] | type[Job]) -> tuple[type[AnyArtifact], InstrumentedAttribute[Any]]:
    """Return the table of artifacts of batches or of jobs, and its column with the owner's id."""
    return (Artifact, Artifact.batch_id) if record is Batch else (JobArtifact, JobArtifact.job_id)


def refuse_stage(work: Batch | Job, action: str) -> None:
    if isinstance(work, Batch) and _is_stage(work):
        message = f"Batch '{work.id}' is stage '{work.stage}' of job '{work.job_id}'; {action} the job."
        raise ConflictError(message, param="batch_id")


def _is_stage(work: Batch | Job) -> bool:
    """True for a job's batch. Only the job decides about it, and has its events."""
    return isinstance(work, Batch) and work.job_id is not None
