"""What the routes of batches and of jobs have in common: the caller's records, and parts of their objects."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from sqlalchemy.orm import Session

from batchyard import tariffs
from batchyard.statuses import TERMINAL
from batchyard.tariffs import TotalCost
from store import schedules
from store.accounting import usage
from store.records import Batch, File, Job
from store.work.lifecycle import AnyArtifact, Lifecycle, Record, Verb
from tasks.intake import budgets, estimate
from tasks.intake.estimate import Part
from tasks.scheduling import deadlines
from tasks.scheduling.forecast import Forecast
from webapp.requests import caller, current_context, reading, writing
from webapp.wire import work as wire
from webapp.wire.start import CostEstimate


def get(life: Lifecycle[Record], work_id: str) -> Record:
    """Return a batch or a job of the caller's project. Raises NotFoundError."""
    with reading() as (session, owner):
        return life.get(session, owner.project_id, work_id)


def title(work: Batch | Job) -> str:
    if isinstance(work, Batch):
        return work.stage or work.name or work.id
    return work.name or (f"{work.recipe}: {work.input_name}" if work.input_name else work.recipe)


def control(life: Lifecycle[Record], work_id: str, verb: Verb) -> Record:
    """Cancel, pause or resume the caller's work. Raises NotFoundError, ConflictError, PermissionDeniedError."""
    with writing() as (session, owner):
        if verb == "resume":
            budgets.check_resume(session, owner, life.get(session, owner.project_id, work_id))
        return life.control(session, owner, work_id, verb)


@dataclass(frozen=True)
class Related:
    """What is read beside the record of a batch or a job; the defaults are those of a new one."""

    forecast: Forecast | None = None
    artifacts: Sequence[tuple[AnyArtifact, File]] = ()
    retries: Sequence[str] = ()
    schedule_id: str | None = None
    cost: TotalCost | None = None


def related(
    session: Session, life: Lifecycle[Record], ids: Sequence[str], forecasts: Mapping[str, Forecast]
) -> dict[str, Related]:
    """Return what belongs to each batch or job, by its id, in one query of each kind for all."""
    artifacts, retries = life.artifacts(session, ids), life.retries(session, ids)
    scheduled = schedules.of_work(session, life.record, ids)
    costs = (usage.costs if life.record is Batch else usage.job_costs)(session, ids)
    return {
        one: Related(forecasts.get(one), artifacts[one], retries[one], scheduled.get(one), costs.get(one))
        for one in ids
    }


def fields(work: Batch | Job, model: type[BaseModel]) -> dict[str, Any]:
    """Return the fields that OpenAI's batch object, and a job's, has straight from its record."""
    copied = {name: getattr(work, name) for name in model.model_fields if name not in _COMPUTED}
    errors = None if work.errors is None else wire.BatchErrors.model_validate({"data": work.errors})
    return copied | {"errors": errors, "metadata": work.request_metadata}


_COMPUTED = ("object", "errors", "request_counts", "usage", "metadata", "batchyard")


def obstacle(work: Batch | Job) -> str | None:
    """Return why work that has not ended does not move; None if nothing but a model may keep it."""
    context = current_context()
    if work.status in TERMINAL:
        return None
    if context.artifacts.is_full():
        return "The disk of the artifact store is full; free some space."
    return None if work.attempt_error is None else context.for_clients(work.attempt_error)


def extension_fields(
    work: Batch | Job, related: Related, *, held: bool, deaths: Iterable[dict[str, Any] | None]
) -> dict[str, Any]:
    """Return the fields of this project's extension that batches and jobs share.

    `held`: it does not move, so it may be late. `deaths`: what the records of its batches say of engines that died.
    """
    entries = [(model, entry) for of_batch in deaths for model, entry in (of_batch or {}).items()]
    last = max(({"model": model, **entry["last"]} for model, entry in entries), key=lambda one: one["at"], default=None)
    return {name: getattr(work, name) for name in _EXTENSION} | {
        **eta(None if work.paused_at is not None else related.forecast),
        "engine_deaths": sum(entry["deaths"] for _, entry in entries),
        "last_engine_death": last,
        "sla": "at_risk" if held and work.sla == "on_track" else work.sla,
        "due_at": deadlines.deadline(work),
        "models": {name: config["engine"] for name, config in work.models.items()},
        "artifacts": [
            {"name": one.name, "lines": one.lines, "file_id": file.id, "sha256": file.sha256, "bytes": file.bytes}
            for one, file in related.artifacts
        ],
        "retries": list(related.retries),
        "schedule_id": related.schedule_id,
        "cost": related.cost and related.cost.document,
    }


_EXTENSION = ("created_by", "callback_url", "paused_at", "paused_by", "simulated", "post_process", "retry_of")


def eta(forecast: Forecast | None) -> dict[str, float | None]:
    names = {"eta_seconds": "at", "eta_earliest_seconds": "earliest", "eta_latest_seconds": "latest"}
    if forecast is None:
        return dict.fromkeys(names)
    now = time.time()
    return {name: max(0.0, getattr(forecast, attribute) - now) for name, attribute in names.items()}


def cost_of(parts: Mapping[str, Part]) -> CostEstimate | None:
    """Return what requests of the caller's project would cost; None if one of their models has no tariff."""
    context = current_context()
    with context.database.read() as session:
        expected = estimate.estimate(context, session, caller().project_id, parts)
    if expected is None:
        return None
    sums = {name: getattr(expected, name) for name in ("amount", "least", "most")}
    texts = {name: None if value is None else tariffs.decimal(value) for name, value in sums.items()}
    return CostEstimate(currency=expected.currency, batches=expected.batches, **texts)


def token_usage(input_tokens: int, cached_tokens: int, output_tokens: int, reasoning_tokens: int) -> wire.Usage:
    return wire.Usage(
        input_tokens=input_tokens,
        input_tokens_details=wire.InputTokensDetails(cached_tokens=cached_tokens),
        output_tokens=output_tokens,
        output_tokens_details=wire.OutputTokensDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=input_tokens + output_tokens,
    )
