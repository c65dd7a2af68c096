"""Overview: one list of a project's batches and jobs, without stages of jobs and children of composites."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from sqlalchemy import ColumnElement, String, and_, cast, func, or_, select, true, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from batchyard.errors import RequestError
from batchyard.statuses import JOB_RUNNING, RUNNING, TERMINAL, JobStatus
from store import files
from store.records import Batch, File, Hold, Job, first_id

Work: TypeAlias = Batch | Job
Condition: TypeAlias = Callable[[type[Work]], ColumnElement[bool]]
Wanted: TypeAlias = JobStatus | Literal["unfinished", "ended", "paused"]
Sort = Literal["next", "newest", "oldest", "failures", "largest"]
SORTS: tuple[Sort, ...] = get_args(Sort)
"""`next`: what has not ended, earliest due first, as it is run; then what has ended, newest first."""

_PREFIXES: Mapping[type[Work], str] = MappingProxyType({Batch: "batch_", Job: "job_"})
_RETRIES: Mapping[type[Work], type[Work]] = MappingProxyType({Batch: aliased(Batch), Job: aliased(Job)})


@dataclass(frozen=True)
class WorkFilter:
    """Which work is listed; None means any.

    `text` is part of its name or its id, `creator` the id of a key, `since` in Unix seconds. `attention` leaves what
    did not go as its owner hopes, and was not retried: failed, late or about to be, on hold, or waiting for a person.
    """

    text: str | None = None
    status: Wanted | None = None
    model: str | None = None
    creator: str | None = None
    since: float | None = None
    attention: bool = False


class _Part(NamedTuple):
    """A part of a list, with its order: by a column of both records, else by creation."""

    status: Literal["unfinished", "ended"] | None
    column: str | None
    descending: bool


_PARTS: Mapping[Sort, tuple[_Part, ...]] = MappingProxyType(
    {
        "next": (_Part("unfinished", "due_at", descending=False), _Part("ended", None, descending=True)),
        "newest": (_Part(None, None, descending=True),),
        "oldest": (_Part(None, None, descending=False),),
        "failures": (_Part(None, "failed", descending=True),),
        "largest": (_Part(None, "total", descending=True),),
    }
)


def count(session: Session, project_id: str | None, wanted: WorkFilter) -> int:
    """Return how much work of a project, or of all (None), passes a filter."""
    of_each = (
        select(func.count()).select_from(record).where(*_scope(record, project_id), *_conditions(record, wanted))
        for record in _PREFIXES
    )
    return sum(session.scalar(statement) or 0 for statement in of_each)


def unfinished(session: Session, project_id: str | None = None) -> int:
    return count(session, project_id, WorkFilter(status="unfinished"))


def bytes_in_flight(session: Session, project_id: str) -> int:
    """Return the input bytes of the project's unfinished work, each input once."""
    sizes = 0
    for record, top in ((Batch, true()), (Job, Job.parent_id.is_(None))):
        statement = (
            select(func.coalesce(func.sum(File.bytes), 0))
            .join(record, and_(record.input_file_id == File.id, record.project_id == File.project_id))
            .where(record.project_id == project_id, _status(record, "unfinished"), top)
        )
        sizes += int(session.scalar(statement) or 0)
    return sizes + int(session.scalar(files.sum_of_appended(project_id)) or 0)


def newest(session: Session, project_id: str) -> str:
    """Return a text that changes when the project gets more work."""
    ids = [session.scalar(select(func.max(record.id)).where(record.project_id == project_id)) for record in _PREFIXES]
    return " ".join(_age(work_id) for work_id in ids if work_id)


def page(
    session: Session,
    project_id: str,
    shown: WorkFilter = WorkFilter(),
    *,
    sort: Sort = "next",
    after: str | None = None,
    limit: int,
    condition: Condition | None = None,
) -> tuple[list[Work], bool]:
    """Return at most `limit` of the project's work after id `after`, and if more follow. Raises RequestError."""
    parts = _PARTS[sort]
    cursor = None if after is None else _find(session, project_id, after)
    if cursor is not None and len(parts) > 1:
        parts = parts[cursor.status in TERMINAL :]
    rows: list[Work] = []
    for number, part in enumerate(parts):
        of_part = list[Work]()
        for record in _PREFIXES:
            conditions = [*_scope(record, project_id), *_conditions(record, shown)]
            if condition is not None:
                conditions.append(condition(record))
            of_part += _rows(session, record, conditions, part, None if number else cursor, limit + 1 - len(rows))
        of_part.sort(key=lambda row: _position(row, part), reverse=part.descending)
        rows += of_part
        if len(rows) > limit:
            break
    return rows[:limit], len(rows) > limit


def _rows(
    session: Session,
    record: type[Work],
    conditions: Sequence[ColumnElement[bool]],
    part: _Part,
    cursor: Work | None,
    limit: int,
) -> list[Work]:
    statement = select(record).where(*conditions)
    if part.status is not None:
        statement = statement.where(_status(record, part.status))
    columns: list[InstrumentedAttribute[Any]] = [record.id]
    if part.column is not None:
        columns.insert(0, getattr(record, part.column))
    if cursor is not None:
        *values, age = _position(cursor, part)
        ends = [*values, _PREFIXES[record] + age]
        end, place = tuple_(*ends), tuple_(*columns)
        statement = statement.where(place < end if part.descending else place > end)
    order = [column.desc() if part.descending else column for column in columns]
    return list(session.scalars(statement.order_by(*order).limit(limit)))


def _position(row: Work, part: _Part) -> tuple[Any, ...]:
    """Return what orders a record in its part: the column's value if there is one, and the age."""
    return (_age(row.id),) if part.column is None else (getattr(row, part.column), _age(row.id))


def _scope(record: type[Work], project_id: str | None) -> Iterator[ColumnElement[bool]]:
    if project_id is not None:
        yield record.project_id == project_id
    yield Batch.job_id.is_(None) if record is Batch else Job.parent_id.is_(None)


def _status(record: type[Work], status: Wanted) -> ColumnElement[bool]:
    if status == "unfinished":
        return record.status.in_(RUNNING if record is Batch else JOB_RUNNING)
    if status == "paused":  # the statuses let the database use their index
        return and_(record.status.in_(RUNNING if record is Batch else JOB_RUNNING), record.paused_at.is_not(None))
    return record.status.in_(sorted(TERMINAL)) if status == "ended" else record.status == status


def _conditions(record: type[Work], shown: WorkFilter) -> Iterator[ColumnElement[bool]]:
    if shown.text is not None:
        names = [record.name, record.id, *((Job.recipe, Job.input_name) if record is Job else ())]
        yield or_(*(name.icontains(shown.text, autoescape=True) for name in names))
    if shown.status is not None:
        yield _status(record, shown.status)
    if shown.model is not None:
        # A key of the object; a batch that is not validated has none.
        yield cast(record.models, String).contains(f"{json.dumps(shown.model)}:", autoescape=True)
    if shown.creator is not None:
        yield record.created_by == shown.creator
    if shown.since is not None:
        yield record.id >= first_id(_PREFIXES[record], shown.since)
    if shown.attention:
        yield _attention(record)


def _attention(record: type[Work]) -> ColumnElement[bool]:
    held = (
        select(Hold.model).where(Hold.model == Batch.model).exists() if record is Batch else Job.waiting_for_verdict > 0
    )
    ended_badly = or_(record.status.in_(("failed", "expired")), record.failed > 0)
    if record is Job:
        ended_badly = or_(ended_badly, Job.stuck > 0)
    stuck = and_(_status(record, "unfinished"), or_(record.sla != "on_track", record.attempt_error.is_not(None), held))
    retry = _RETRIES[record]  # to alias a record takes longer than all else here
    retried = select(retry.id).where(retry.retry_of == record.id).exists()
    return or_(stuck, and_(ended_badly, ~retried))


def _age(work_id: str) -> str:
    """Return the part of an id that sorts by its creation, whatever it is of."""
    return work_id.partition("_")[2]


def _find(session: Session, project_id: str, work_id: str) -> Work:
    work: Work | None = session.get(Job, work_id) if work_id.startswith("job_") else session.get(Batch, work_id)
    if work is None or work.project_id != project_id:
        raise RequestError(f"Invalid 'after': no object with id '{work_id}'.", code="invalid_value", param="after")
    return work
