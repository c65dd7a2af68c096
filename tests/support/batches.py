"""Batches as a client creates them, straight in the records."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from store import batches
from store.records import Batch, File
from tasks.intake import submission


def create_batch(session: Session, source: File, *, due_after: int | None = None, **changes: Any) -> Batch:
    """A batch of chat requests with a window of a day. `changes` are other columns of its record."""
    columns = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "post_process": []} | changes
    batch = Batch(project_id=source.project_id, **columns)
    return batches.create(session, batch, source, due_after=due_after)


def open_batch(session: Session, project_id: str, **changes: Any) -> Batch:
    """An open batch of chat requests. `changes` are other columns of its record."""
    source = submission.no_file()
    source.project_id = project_id
    return create_batch(session, source, open=True, **changes)
