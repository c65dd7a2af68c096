"""Batches as a client creates them, straight in the records."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from store import batches
from store.records import Batch, File


def create_batch(session: Session, source: File, **changes: Any) -> Batch:
    """A batch of chat requests with a window of a day. `changes` replace what `store.batches.create` gets."""
    options: dict[str, Any] = {
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": None,
        "post_process": [],
        "output_expires_after": None,
    }
    return batches.create(session, source.project_id, input_file=source, **(options | changes))
