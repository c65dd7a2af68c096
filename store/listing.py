"""Pages of lists, by cursor. Ids sort by creation, so pages are stable while objects come and go."""

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import ColumnElement, select, true
from sqlalchemy.orm import Session

from batchyard.errors import RequestError
from store.records import ApiKey, Batch, Delivery, Event, File, Job, Project, Schedule, ScheduleRun, Webhook

Listed = TypeVar("Listed", ApiKey, Batch, Delivery, Event, File, Job, Project, Schedule, ScheduleRun, Webhook)


def page(
    session: Session,
    record: type[Listed],
    scope: ColumnElement[bool],
    *,
    after: str | None,
    limit: int,
    descending: bool,
    shown: ColumnElement[bool] | None = None,
) -> tuple[Sequence[Listed], bool]:
    """Return at most `limit` records after the one with id `after`, and True if there are more.

    Any record in the `scope` that the caller may see can be the cursor, even one that is not `shown`. Raises
    RequestError: no record in the scope has the id `after`.
    """
    statement = select(record).where(scope, true() if shown is None else shown)
    if after is not None:
        if session.scalar(select(record.id).where(scope, record.id == after)) is None:
            raise RequestError(f"Invalid 'after': no object with id '{after}'.", code="invalid_value", param="after")
        statement = statement.where(record.id < after if descending else record.id > after)
    order = record.id.desc() if descending else record.id.asc()
    records = session.scalars(statement.order_by(order).limit(limit + 1)).all()
    return records[:limit], len(records) > limit
