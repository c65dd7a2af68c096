"""What the routes of batches and those of jobs have in common: the caller's record, and parts of its object."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from batchyard.tariffs import TotalCost
from store.records import File
from store.work.artifacts import AnyArtifact
from store.work.lifecycle import Lifecycle, Record, Verb
from tasks.scheduling.forecast import Forecast
from webapp.requests import caller, current_context
from webapp.wire.work import ArtifactObject, Cost, EngineDeath, InputTokensDetails, OutputTokensDetails, Usage


def get(life: Lifecycle[Record], work_id: str) -> Record:
    """Return a batch or a job of the caller's project. Raises NotFoundError."""
    owner = caller()
    with current_context().database.read() as session:
        return life.get(session, owner.project_id, work_id)


def control(life: Lifecycle[Record], work_id: str, verb: Verb) -> Record:
    """Cancel, pause or resume work of the caller's project. Raises NotFoundError, ConflictError."""
    owner = caller()
    with current_context().database.write() as session:
        return life.control(session, owner, work_id, verb)


def cost(amounts: TotalCost | None) -> Cost | None:
    """Return a cost as it crosses the wire, null without a tariff."""
    document = amounts and amounts.document
    return None if document is None else Cost.model_validate(document)


def eta(forecast: Forecast | None) -> dict[str, float | None]:
    """Return the fields of an ETA, null without a forecast."""
    names = {"eta_seconds": "at", "eta_earliest_seconds": "earliest", "eta_latest_seconds": "latest"}
    if forecast is None:
        return dict.fromkeys(names)
    now = time.time()
    return {name: max(0.0, getattr(forecast, attribute) - now) for name, attribute in names.items()}


def usage(input_tokens: int, cached_tokens: int, output_tokens: int) -> Usage:
    """Return amounts of tokens as OpenAI's usage object."""
    return Usage(
        input_tokens=input_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=cached_tokens),
        output_tokens=output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        total_tokens=input_tokens + output_tokens,
    )


def engine_deaths(of_batches: Iterable[dict[str, Any] | None]) -> dict[str, Any]:
    """Return the fields `engine_deaths` and `last_engine_death`, of what the records of batches say."""
    entries = [(model, entry) for deaths in of_batches for model, entry in (deaths or {}).items()]
    last = max(({"model": model, **entry["last"]} for model, entry in entries), key=lambda one: one["at"], default=None)
    return {
        "engine_deaths": sum(entry["deaths"] for _, entry in entries),
        "last_engine_death": None if last is None else EngineDeath.model_validate(last),
    }


def artifacts(rows: Sequence[tuple[AnyArtifact, File]]) -> list[ArtifactObject]:
    """Return artifacts as they cross the wire."""
    return [
        ArtifactObject(name=artifact.name, file_id=file.id, sha256=file.sha256, bytes=file.bytes, lines=artifact.lines)
        for artifact, file in rows
    ]
