"""/usage: what was used in a month and what it has cost. Administrators see all projects, and their budgets."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import NamedTuple

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import Field

from batchyard.errors import RequestError
from store import projects
from store.accounting import budgets
from store.accounting.budgets import Standing
from store.accounting.months import Month, day_of, day_text
from store.accounting.usage import UsageEntry
from webapp.accounts.budgets import remove_budget, set_budget
from webapp.accounts.usage import Listed, as_csv, read, total_of
from webapp.pages.charts.bars import stacked
from webapp.pages.charts.shapes import Chart
from webapp.pages.forms import Problem
from webapp.requests import administrator, caller, current_context, query, validated
from webapp.wire.lists import QueryParams
from webapp.wire.usage import DIMENSIONS, SetBudget, UsageQuery, UsageTotal

routes = Blueprint("usage", __name__, url_prefix="/usage")
MODELS = 5
"""The number of models in the chart that stand for themselves."""
ROWS = 50
"""The number of rows shown of a table: the csv file has all."""


class UsageParams(QueryParams):
    month: str | None = Field(None, description="such as 2026-11")
    project: str | None = Field(None, description="only this project's, for administrators")


class UsageTableRow(NamedTuple):
    """A row of a table: what it is about, and what that has used. `project` is set where it is a project."""

    label: str
    total: UsageTotal
    project: str | None = None


class UsageTable(NamedTuple):
    title: str
    column: str
    rows: list[UsageTableRow]
    more: int


@routes.get("/usage.csv")
def download() -> ResponseReturnValue:
    """Download the usage of a month, a line for each day, model, project and key."""
    return as_csv(_read(query(UsageParams)))


@routes.post("/budget")
def change_budget() -> ResponseReturnValue:
    """Set a project's budget. Without an amount it is removed."""
    administrator()
    fields = flask.request.form
    try:
        with current_context().database.read() as session:
            project_id = projects.named(session, fields.get("project", ""))
        values = {name: text for name in SetBudget.model_fields if (text := fields.get(name, "").strip())}
        if "amount" in values:
            set_budget(project_id, validated(SetBudget, values))
        else:
            remove_budget(project_id)
    except RequestError as error:
        return _page(Problem.of(error)), error.status
    return flask.redirect(flask.url_for("pages.usage.show", _anchor="budgets"), 303)


def _read(params: UsageParams) -> Listed:
    fields = {"month": params.month or None, "project": params.project or None}
    return read(UsageQuery(**fields, by=",".join(DIMENSIONS)))


@routes.get("", endpoint="show")
def _page(problem: Problem | None = None) -> str:
    params, owner = query(UsageParams) if problem is None else UsageParams(month=None, project=None), caller()
    listed = _read(params)
    with current_context().database.read() as session:
        standing = budgets.standing(session, listed.scope or owner.project_id)
        standings = budgets.standings(session) if owner.admin else []
        every = projects.all_(session) if owner.admin else []
    names = {project.id: project.name for project in every}
    return flask.render_template(
        "usage.html",
        month=str(listed.month),
        previous=str(listed.month.previous),
        next=str(listed.month.next) if listed.month < Month.of() else None,
        project=params.project,
        total=total_of(listed.lines),
        chart=_chart(listed) if listed.lines else None,
        tables=_tables(listed),
        budget=standing and _shown(standing, names.get(standing.budget.project_id, "")),
        budgets=[_shown(one, names[one.budget.project_id]) for one in standings],
        currency=next((spec.price.currency for spec in current_context().models.values() if spec.price), ""),
        projects=every,
        problem=problem,
        fields=flask.request.form,
    )


def _shown(standing: Standing, name: str) -> dict[str, object]:
    share = standing.spent / standing.amount if standing.amount else Fraction(1)
    return {**standing.document, "project": name, "share": float(share)}


def _chart(listed: Listed) -> Chart:
    """Return the tokens of each day until today, by the models that used most and the others together."""
    month = listed.month
    days = range(month.first, min(month.end, day_of(time.time()) + 1))
    tokens: dict[str, Counter[int]] = defaultdict(Counter)
    for line in listed.lines:
        tokens[line.model or ""][line.day or 0] += line.amounts.input_tokens + line.amounts.output_tokens
    largest = sorted(tokens, key=lambda model: tokens[model].total(), reverse=True)
    for model in largest[MODELS:]:
        tokens["other models"] += tokens.pop(model)
    series = {
        model: [by_day[day] for day in days]
        for model in [*largest[:MODELS], "other models"]
        if (by_day := tokens.get(model))
    }
    return stacked("Input and output tokens by day and model", [day_text(day)[-2:] for day in days], series)


def _tables(listed: Listed) -> list[UsageTable]:
    """Return usage by day, by model, by project where there are several, and by key."""
    tables = [
        _table("By day", "Day", listed.lines, lambda line: day_text(line.day or 0)),
        _table("By model", "Model", listed.lines, lambda line: line.model or ""),
    ]
    if listed.scope is None:
        name_of = listed.projects
        by_project = _table("By project", "Project", listed.lines, lambda line: name_of.get(line.project_id or "", ""))
        tables.append(by_project._replace(rows=[row._replace(project=row.label) for row in by_project.rows]))
    tables.append(_table("By key", "Key", listed.lines, lambda line: _key(listed, line)))
    return tables


def _key(listed: Listed, line: UsageEntry) -> str:
    """Return what people call the key of a line: keys of different projects may have one label."""
    if line.key_id is None:
        return "a schedule"
    name = listed.keys.get(line.key_id, f"key …{line.key_id[-8:]}")
    return f"{name} of {listed.projects.get(line.project_id or '', '')}" if listed.scope is None else name


def _table(title: str, column: str, lines: Iterable[UsageEntry], label: Callable[[UsageEntry], str]) -> UsageTable:
    """Add lines up by a label: days in order, others by their cost, then by their tokens."""
    groups: dict[str, list[UsageEntry]] = {}
    for line in lines:
        groups.setdefault(label(line), []).append(line)
    rows = [UsageTableRow(name, total_of(lines)) for name, lines in groups.items()]

    def weight(row: UsageTableRow) -> tuple[Fraction, int]:
        return sum((Fraction(cost.amount) for cost in row.total.costs), Fraction(0)), row.total.output_tokens

    rows = sorted(rows) if column == "Day" else sorted(rows, key=weight, reverse=True)
    return UsageTable(title, column, rows[:ROWS], len(rows) - ROWS)
