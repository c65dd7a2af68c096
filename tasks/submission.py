"""Submission: what every new batch goes through, whoever asks for it: a client, a form or a schedule."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from batchyard import durations
from batchyard.errors import RateLimitError, RequestError
from batchyard.settings import Settings
from store import batches, files
from store.artifacts import Writer
from store.files import INPUT_EXPIRES_AFTER
from store.records import Batch, File
from tasks.house import House

# When to ask again for room that only the end of another batch makes.
IN_FLIGHT_RETRY_SECONDS = 30.0


def submit(house: House, session: Session, project_id: str, *, input_file: File, **options: Any) -> Batch:
    """A new batch (`options` are those of `batches.create`), if the project's batches have room for its input.

    Whoever calls this rings for a worker once the transaction is over: `messages.validate`.

    Raises:
        RateLimitError: not now.
    """
    most = house.settings.max_bytes_in_flight
    waiting = batches.bytes_in_flight(session, project_id)
    if waiting + input_file.bytes > most:
        raise RateLimitError(
            f"The inputs of this project's unfinished batches have {waiting} bytes; with this one's "
            f"{input_file.bytes} they would have more than {most}. Try again when one has ended.",
            retry_after=IN_FLIGHT_RETRY_SECONDS,
            param="input_file_id",
        )
    return batches.create(session, project_id, input_file=input_file, **options)


def input_file(session: Session, project_id: str, file_id: str) -> File:
    """The file of that id, which can be a batch's input. Raises RequestError."""
    source = files.find(session, project_id, file_id)
    if source is None:
        raise RequestError(f"No file found with id '{file_id}'.", code="invalid_value", param="input_file_id")
    if source.purpose != "batch":
        raise RequestError(
            f"The file '{source.id}' has purpose '{source.purpose}'; upload it with purpose 'batch'.",
            code="invalid_value",
            param="input_file_id",
        )
    return source


def name_input(session: Session, project_id: str, name: str, source: Writer) -> File:
    """A file for what was stored as the input of a batch."""
    return files.create(
        session,
        project_id,
        filename=name,
        purpose="batch",
        size=source.size,
        sha256=source.sha256,
        expires_after=INPUT_EXPIRES_AFTER,
    )


def check_window(settings: Settings, window: str) -> None:
    """Raises RequestError for a completion window that this deployment does not offer."""
    if window != "24h" and not settings.min_window <= durations.seconds(window) <= settings.max_window:
        raise RequestError(
            f"Invalid value for 'completion_window': {window}; supported are 24h and anything from "
            f"{settings.min_window}s to {settings.max_window}s.",
            code="invalid_value",
            param="completion_window",
        )
