"""Usage: what engines have computed of each batch, by model and day, with the tariff of that batch.

The transaction that appends a result chunk adds it here, so the sum over all batches is that of all answers that were
kept: an answer that a killed worker could not append is counted when it is appended, once. Rows outlive their batches.
"""

import functools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Row, Select, and_, func, select, update
from sqlalchemy.orm import Session

from batchyard import tariffs
from batchyard.models import Tariff
from batchyard.tariffs import Amounts, Prices, TotalCost
from store import events
from store.accounting.months import Month, day_of, day_text
from store.database import insert
from store.keys import Principal
from store.records import Batch, Budget, DailyUsage, Job, Project
from store.segments import SegmentLease

Dimension = Literal["day", "model", "project", "key"]
"""What usage can be listed by."""
_COLUMNS: Mapping[Dimension, Any] = {
    "day": DailyUsage.day,
    "model": DailyUsage.model,
    "project": DailyUsage.project_id,
    "key": DailyUsage.key_id,
}
_PRICES = (
    DailyUsage.currency,
    DailyUsage.input_price,
    DailyUsage.cached_price,
    DailyUsage.output_price,
    DailyUsage.hour_price,
)
_KEY = ("batch_id", "model", "day")
LIVE = "live:"
"""Begins the `batch_id` of live requests' usage."""


@dataclass(frozen=True)
class UsageEntry:
    """Usage of one day, model, project and key, as listed by them. `cost` is None without a tariff."""

    amounts: Amounts
    currency: str | None
    cost: Fraction | None
    day: int | None = None
    model: str | None = None
    project_id: str | None = None
    key_id: str | None = None


def add(session: Session, segment: SegmentLease, amounts: Amounts) -> None:
    """Add what the requests of a result chunk have used, in the transaction that appends it."""
    price = segment.model.get("price")
    of_job = select(Job.created_by).where(Job.id == segment.job_id).scalar_subquery()
    key_id = select(func.coalesce(Batch.created_by, of_job)).where(Batch.id == segment.batch_id).scalar_subquery()
    whose = {"batch_id": segment.batch_id, "job_id": segment.job_id, "key_id": key_id}
    tariff = None if price is None else Tariff.model_validate(price)
    _add(session, segment.project_id, segment.model["name"], tariff, amounts, whose)


def add_live(
    session: Session, project_id: str, key_id: str, model: str, tariff: Tariff | None, amounts: Amounts
) -> None:
    """Add what live requests with a key have used. They are of no batch: LIVE and the key stand for it.

    Nothing is added for a project that was erased meanwhile.
    """
    project = select(Project.id).where(Project.id == project_id).with_for_update(read=True, key_share=True)
    if session.scalar(project) is None:
        return
    _add(session, project_id, model, tariff, amounts, {"batch_id": LIVE + key_id, "job_id": None, "key_id": key_id})


def _add(
    session: Session, project_id: str, model: str, tariff: Tariff | None, amounts: Amounts, whose: Mapping[str, Any]
) -> None:
    prices = None if tariff is None else tariff.prices()
    new = insert(session, DailyUsage).values(
        **whose,
        model=model,
        day=day_of(time.time()),
        project_id=project_id,
        **amounts._asdict(),
        **dict(zip((column.key for column in _PRICES), prices or (None,) * len(_PRICES), strict=True)),
    )
    sums = {name: getattr(DailyUsage, name) + getattr(new.excluded, name) for name in Amounts._fields}
    session.execute(new.on_conflict_do_update(index_elements=_KEY, set_=sums))


def costs(session: Session, batch_ids: Collection[str]) -> dict[str, TotalCost]:
    """Return what each batch has cost so far, by its id, without those that have no answer."""
    rows = session.execute(_sums(DailyUsage.batch_id).where(DailyUsage.batch_id.in_(batch_ids)))
    return {batch_id: tariffs.total(lines) for (batch_id,), lines in _lines(rows).items()}


def job_costs(session: Session, job_ids: Collection[str]) -> dict[str, TotalCost]:
    """Return what each job and the jobs that it has started have cost so far, by its id."""
    rows: list[Row[Any]] = []
    for owner in (Job.id, Job.parent_id):
        rows += session.execute(_sums(owner).join(Job, Job.id == DailyUsage.job_id).where(owner.in_(job_ids)))
    return {job_id: tariffs.total(lines) for (job_id,), lines in _lines(rows).items()}


class Used(NamedTuple):
    """The tokens, input and output, that something used, and what it spent by currency."""

    tokens: int = 0
    spent: Mapping[str, Fraction] = MappingProxyType({})


def used(
    session: Session, month: Month, by: Literal["project_id", "key_id", "batch_id"], ids: Mapping[str, str]
) -> dict[str, Used]:
    """Return what was used in a month by these ids, each with its project's id."""
    column = getattr(DailyUsage, by)
    which = and_(column.in_(ids), DailyUsage.project_id.in_(set(ids.values())), _within(month))
    found = dict.fromkeys(ids, Used())
    for (owner,), lines in _lines(session.execute(_sums(column).where(which))).items():
        tokens = sum(amounts.input_tokens + amounts.output_tokens for _, amounts in lines)
        found[owner] = Used(tokens, tariffs.total(lines).amounts)
    return found


def recompute(
    session: Session, by: Principal, since: int, prices: Mapping[str, Prices], *, write: bool
) -> dict[str, tuple[TotalCost, TotalCost]]:
    """Return what models cost since a day (as stored), as recorded and at these prices, where it differs.

    With `write`, record the latter, and who did it. Running batches keep their prices for days that follow.
    """
    which = and_(DailyUsage.day >= since, DailyUsage.model.in_(prices))
    costs = {
        model: (tariffs.total(before), tariffs.total((prices[model], amounts) for _, amounts in before))
        for (model,), before in _lines(session.execute(_sums(DailyUsage.model).where(which))).items()
    }
    changes = {model: pair for model, pair in costs.items() if pair[0] != pair[1]}
    if write and changes:
        for model in changes:
            values = dict(zip((column.key for column in _PRICES), prices[model], strict=True))
            session.execute(update(DailyUsage).where(DailyUsage.day >= since, DailyUsage.model == model).values(values))
        session.execute(update(Budget).values(version=Budget.version + 1))
        events.act(session, by, "usage.recomputed", day_text(since), models=sorted(changes))
    return changes


def listed(session: Session, month: Month, by: Sequence[Dimension], project_id: str | None) -> list[UsageEntry]:
    """Return the usage of a month, sorted, by currency; of one project or of all (None)."""
    columns = [*(_COLUMNS[dimension] for dimension in by), DailyUsage.currency]
    statement = _sums(*columns).where(_within(month))
    if project_id is not None:
        statement = statement.where(DailyUsage.project_id == project_id)
    entries = []
    for group, lines in _lines(session.execute(statement), len(columns)).items():
        keys = {column.key: key for column, key in zip(columns, group, strict=True)}
        amounts = functools.reduce(Amounts.plus, (amounts for _, amounts in lines))
        entries.append(UsageEntry(amounts, cost=tariffs.total(lines).amounts.get(keys["currency"]), **keys))
    names = ("model", "project_id", "key_id", "currency")
    return sorted(entries, key=lambda entry: (entry.day or 0, *(getattr(entry, name) or "" for name in names)))


def recent(session: Session, project_id: str, model: str, limit: int) -> list[Amounts]:
    """Return what the project's newest batches of a model that an engine computed have used, at most `limit`."""
    computed = and_(DailyUsage.project_id == project_id, DailyUsage.model == model, DailyUsage.bytes > 0)
    statement = (
        select(DailyUsage.batch_id, *_TOTALS)
        .where(computed)
        .group_by(DailyUsage.batch_id)
        .order_by(DailyUsage.batch_id.desc())
        .limit(limit)
    )
    return [Amounts(*map(int, row[1:])) for row in session.execute(statement)]


def _within(month: Month) -> ColumnElement[bool]:
    return and_(DailyUsage.day >= month.first, DailyUsage.day < month.end)


_TOTALS = tuple(func.coalesce(func.sum(getattr(DailyUsage, name)), 0) for name in Amounts._fields)


def _sums(*columns: Any) -> Select[Any]:
    """Select the sums by these columns and by prices."""
    return select(*columns, *_PRICES, *_TOTALS).group_by(*columns, *_PRICES)


def _lines(rows: Iterable[Row[Any]], keys: int = 1) -> dict[tuple[Any, ...], list[tuple[Prices | None, Amounts]]]:
    """Return the amounts at each price of rows of `_sums`, by its columns, of which there are `keys`."""
    lines: dict[tuple[Any, ...], list[tuple[Prices | None, Amounts]]] = {}
    for row in rows:
        (currency, *numbers), amounts = row[keys : keys + len(_PRICES)], row[keys + len(_PRICES) :]
        prices = None if currency is None else Prices(currency, *map(int, numbers))
        lines.setdefault(tuple(row[:keys]), []).append((prices, Amounts(*map(int, amounts))))
    return lines
