"""List pages by cursor. Ids sort by creation, so a page is stable while objects come and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import ColumnElement, select, true
from sqlalchemy.orm import Session

from batchyard.errors import RequestError
from store.records import ApiKey, Batch, Delivery, Event, File, Project, Schedule, ScheduleRun, Webhook

Listed = TypeVar("Listed", ApiKey, Batch, Delivery, Event, File, Project, Schedule, ScheduleRun, Webhook)


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
    """At most `limit` records within `scope` that follow the one with id `after`; whether there are more.

    Args:
        scope: what the caller may know of.
        shown: which of these to list; a record that has ceased to be one of them still serves as a cursor.

    Raises:
        RequestError: `after` names nothing within the scope.
    """
    statement = select(record).where(scope, true() if shown is None else shown)
    if after is not None:
        if session.scalar(select(record.id).where(scope, record.id == after)) is None:
            raise RequestError(f"Invalid 'after': no object with id '{after}'.", code="invalid_value", param="after")
        statement = statement.where(record.id < after if descending else record.id > after)
    order = record.id.desc() if descending else record.id.asc()
    found = session.scalars(statement.order_by(order).limit(limit + 1)).all()
    return found[:limit], len(found) > limit
