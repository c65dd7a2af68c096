"""/v1/usage: what was used in a month, and what it has cost, by day, model, project and key."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from flask import Blueprint, Response

from batchyard import tariffs
from batchyard.tables.spreadsheets import harmless
from batchyard.tariffs import Amounts
from store import keys, projects
from store.accounting import budgets, usage
from store.accounting.months import Month, day_of_text, day_text
from store.accounting.usage import Dimension, UsageEntry
from webapp.document import operation
from webapp.requests import administrator, caller, current_context, parse_body, query
from webapp.wire import usage as wire

routes = Blueprint("usage", __name__)

AMOUNTS = ("requests", "failed", "shared_requests", "input_tokens", "cached_tokens", "output_tokens", "seconds")


@dataclass(frozen=True)
class Listed:
    """Usage of a month, with what people call its projects and keys. `scope`: the project's id, None for all."""

    month: Month
    by: Sequence[Dimension]
    scope: str | None
    lines: list[UsageEntry]
    projects: dict[str, str]
    keys: dict[str, str]

    def to_wire(self) -> list[wire.UsageLine]:
        return [
            wire.UsageLine(
                **amounts_of(line.amounts),
                day=None if line.day is None else day_text(line.day),
                model=line.model,
                project=self.projects.get(line.project_id or ""),
                key_id=line.key_id,
                key=self.keys.get(line.key_id or ""),
                cost=None if line.cost is None else _money(line.cost, line.currency or ""),
            )
            for line in self.lines
        ]


def _money(amount: Fraction, currency: str) -> wire.Money:
    return wire.Money(amount=tariffs.decimal(amount), currency=currency)


def read(params: wire.UsageQuery) -> Listed:
    """Return the usage of the caller's project. An admin key gets that of any project, or of all.

    Raises:
        RequestError: there is no such month.
        NotFoundError: there is no such project, or it is not the caller's.
    """
    owner = caller()
    month = Month.of() if params.month is None else Month.parse(params.month)
    by = [dimension for dimension in wire.DIMENSIONS if dimension in params.by.split(",")]
    with current_context().database.read() as session:
        scope = None if owner.admin and params.project is None else owner.project_id
        if params.project is not None:
            scope = projects.named(session, params.project, only=None if owner.admin else owner.project_id)
        lines = usage.listed(session, month, by, scope)
        names = projects.names(session, {line.project_id for line in lines if line.project_id})
        labels = keys.named(session, scope, {line.key_id for line in lines if line.key_id})
    return Listed(month, by, scope, lines, names, labels)


def amounts_of(amounts: Amounts) -> dict[str, Any]:
    """Return amounts as they cross the wire."""
    return {name: getattr(amounts, name) for name in AMOUNTS[:-1]} | {"seconds": amounts.milliseconds / 1000}


def total_of(lines: Iterable[UsageEntry]) -> wire.UsageTotal:
    amounts, costs, unpriced = tariffs.NOTHING, defaultdict[str, Fraction](Fraction), 0
    for line in lines:
        amounts = amounts.plus(line.amounts)
        if line.cost is None:
            unpriced += line.amounts.requests
        else:
            costs[line.currency or ""] += line.cost
    money = [_money(cost, currency) for currency, cost in sorted(costs.items())]
    return wire.UsageTotal(**amounts_of(amounts), costs=money, unpriced_requests=unpriced)


@routes.get("/v1/usage")
@operation(wire.UsageObject, query=wire.UsageQuery, refusals=(404,))
def show() -> wire.UsageObject:
    """Say what was used in a month, and what it has cost by the tariffs of that time."""
    owner, params = caller(), query(wire.UsageQuery)
    listed = read(params)
    with current_context().database.read() as session:
        standing = budgets.standing(session, listed.scope or owner.project_id)
    budget = None if standing is None else wire.BudgetObject.model_validate(standing.document)
    return wire.UsageObject(month=str(listed.month), data=listed.to_wire(), total=total_of(listed.lines), budget=budget)


@routes.post("/v1/usage/recompute")
@operation(wire.RecomputedUsage, json=wire.RecomputeUsage, refusals=(403, 413))
def recompute() -> wire.RecomputedUsage:
    """Compare recorded costs with those at the prices of today, and record these with `write`.

    Models without a price in models.toml keep what is recorded.
    """
    owner, body, context = administrator(), parse_body(wire.RecomputeUsage), current_context()
    prices = {name: spec.price.prices() for name, spec in context.models.items() if spec.price}
    with context.database.write() as session:
        changes = usage.recompute(session, owner, day_of_text(body.since), prices, write=body.write)
    data = [
        wire.RecomputedCost(
            model=model,
            before=[_money(amount, currency) for currency, amount in sorted(before.amounts.items())],
            after=[_money(amount, currency) for currency, amount in sorted(after.amounts.items())],
            unpriced_requests=before.unpriced_requests,
        )
        for model, (before, after) in sorted(changes.items())
    ]
    return wire.RecomputedUsage(since=body.since, written=body.write, data=data)


@routes.get("/v1/usage.csv")
@operation(None, media_type="text/csv", query=wire.UsageQuery, refusals=(404,))
def download() -> Response:
    """Read what was used in a month as csv: a line for each day, model and project, or by what the query says."""
    return as_csv(read(query(wire.UsageQuery)))


def as_csv(listed: Listed) -> Response:
    """Return usage as a csv file, a column for each field of its lines."""
    text = io.StringIO()
    columns = [*listed.by, *AMOUNTS, "cost", "currency"]
    rows = csv.writer(text)
    rows.writerow(columns)
    for line in listed.to_wire():
        names = [getattr(line, dimension) for dimension in listed.by]
        cost = (line.cost.amount, line.cost.currency) if line.cost else (None, None)
        rows.writerow([*map(harmless, names), *(getattr(line, name) for name in AMOUNTS), *cost])
    response = Response(text.getvalue(), mimetype="text/csv")
    response.headers["Content-Disposition"] = f"attachment; filename=usage-{listed.month}.csv"
    return response
