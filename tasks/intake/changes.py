"""Changes: a new deadline, priority, name or description of a batch that a client has created."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from batchyard import durations
from batchyard.errors import RequestError
from batchyard.statuses import PAUSABLE, PRIORITIES, Priority
from store import batches, projects
from store.keys import Principal
from store.records import Batch, now
from tasks.context import AppContext
from tasks.intake import submission


def change(
    context: AppContext,
    by: Principal,
    batch_id: str,
    *,
    completion_window: str | None = None,
    priority: Priority | None = None,
    metadata: Mapping[str, str | None],
) -> Batch:
    """Change a batch; None stays. Raises as `batches.change`; RequestError for a window that cannot be."""
    order: dict[str, Any] = {} if priority is None else {"priority": PRIORITIES[priority]}
    with context.database.write() as session:
        batch = batches.get(session, by.project_id, batch_id)
        if completion_window not in (None, batch.completion_window):
            order |= _deadline(context, session, batch, completion_window)
        return batches.change(session, by, batch_id, order, metadata)


def _deadline(context: AppContext, session: Session, batch: Batch, window: str) -> dict[str, Any]:
    submission.check_window(context.settings, window)
    expires_at = batch.created_at + durations.seconds(window)
    if expires_at <= now() and batch.status in PAUSABLE:
        raise RequestError(
            f"A window counts from the batch's creation, {_moment(batch.created_at)}: one of {window} has ended at "
            f"{_moment(expires_at)}, and now it is {_moment(now())}. Ask for more than "
            f"{durations.text(now() - batch.created_at)}.",
            code="invalid_value",
            param="completion_window",
        )
    tier = projects.get(session, batch.project_id).tier
    due_after = None if tier is None else context.settings.tier_seconds.get(tier)
    due_at = expires_at if due_after is None else batch.created_at + due_after
    return {"completion_window": window, "expires_at": expires_at, "due_at": due_at}


def _moment(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
