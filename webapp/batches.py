"""/v1/batches: create, list, look at, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flask
from flask import Blueprint
from pydantic import BaseModel, Field

from batchyard import durations
from batchyard.errors import RequestError
from store import batches, files
from store.records import Batch
from tasks import messages, progress
from webapp import wire
from webapp.requests import caller, current_house, parse_body, validated

routes = Blueprint("batches", __name__)


class ListBatches(BaseModel):
    after: str | None = None
    limit: int = Field(20, ge=1, le=100)


def to_wire(found: Sequence[Batch]) -> list[wire.BatchObject]:
    """Batches as OpenAI's batch objects, with their artifacts and live rates looked up together."""
    house = current_house()
    ids = [batch.id for batch in found]
    with house.database.read() as session:
        artifacts = batches.artifacts(session, ids)
    live = progress.read(house, [batch.id for batch in found if batch.status == "in_progress"])
    return [
        wire.BatchObject(
            **{name: getattr(batch, name) for name in _SAME},
            errors=None if batch.errors is None else wire.BatchErrors.model_validate({"data": batch.errors}),
            request_counts=wire.RequestCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
            usage=wire.Usage(
                input_tokens=batch.input_tokens,
                input_tokens_details=wire.InputTokensDetails(cached_tokens=batch.cached_tokens),
                output_tokens=batch.output_tokens,
                output_tokens_details=wire.OutputTokensDetails(reasoning_tokens=0),
                total_tokens=batch.input_tokens + batch.output_tokens,
            ),
            metadata=batch.request_metadata,
            batchyard=wire.Extension(
                expired=batch.expired,
                cancelled=batch.cancelled,
                simulated=batch.simulated,
                **{
                    name: live.get(batch.id, {}).get(name)
                    for name in ("rows_per_second", "tokens_per_second", "eta_seconds")
                },
                input_sha256=batch.input_sha256,
                models={name: config["engine"] for name, config in batch.models.items()},
                post_process=batch.post_process,
                artifacts=[
                    wire.ArtifactObject(
                        name=artifact.name, file_id=file.id, sha256=file.sha256, bytes=file.bytes, lines=artifact.lines
                    )
                    for artifact, file in artifacts[batch.id]
                ],
            ),
        )
        for batch in found
    ]


def _answer(batch: Batch) -> dict[str, Any]:
    return to_wire([batch])[0].model_dump()


_OWN = ("object", "errors", "request_counts", "usage", "metadata", "batchyard")
_SAME = [name for name in wire.BatchObject.model_fields if name not in _OWN]


@routes.post("/v1/batches")
def create() -> dict[str, Any]:
    owner = caller()
    asked = parse_body(wire.CreateBatch)
    house = current_house()
    _check_window(asked.completion_window)
    with house.database.write() as session:
        source = files.find(session, owner.project_id, asked.input_file_id)
        if source is None:
            raise RequestError(
                f"No file found with id '{asked.input_file_id}'.", code="invalid_value", param="input_file_id"
            )
        if source.purpose != "batch":
            raise RequestError(
                f"The file '{source.id}' has purpose '{source.purpose}'; upload it with purpose 'batch'.",
                code="invalid_value",
                param="input_file_id",
            )
        batch = batches.create(
            session,
            owner.project_id,
            endpoint=asked.endpoint,
            completion_window=asked.completion_window,
            input_file=source,
            metadata=asked.metadata,
            post_process=asked.post_process,
            output_expires_after=asked.output_expires_after.seconds if asked.output_expires_after else None,
        )
    messages.validate(batch.id)
    return _answer(batch)


def _check_window(window: str) -> None:
    configured = current_house().settings
    if window != "24h" and not configured.min_window <= durations.seconds(window) <= configured.max_window:
        raise RequestError(
            f"Invalid value for 'completion_window': {window}; supported are 24h and anything from "
            f"{configured.min_window}s to {configured.max_window}s.",
            code="invalid_value",
            param="completion_window",
        )


@routes.get("/v1/batches")
def list_() -> dict[str, Any]:
    owner = caller()
    query = validated(ListBatches, dict(flask.request.args))
    with current_house().database.read() as session:
        found, more = batches.page(session, owner.project_id, after=query.after, limit=query.limit)
    return wire.list_object(to_wire(found), more)


@routes.get("/v1/batches/<batch_id>")
def retrieve(batch_id: str) -> dict[str, Any]:
    owner = caller()
    with current_house().database.read() as session:
        batch = batches.get(session, owner.project_id, batch_id)
    return _answer(batch)


@routes.post("/v1/batches/<batch_id>/cancel")
def cancel(batch_id: str) -> dict[str, Any]:
    owner = caller()
    with current_house().database.write() as session:
        batch = batches.cancel(session, owner.project_id, batch_id)
    return _answer(batch)
