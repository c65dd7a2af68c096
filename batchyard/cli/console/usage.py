"""`batchyard usage`: what was used in a month, and what it has cost."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import click

from batchyard import tariffs
from batchyard.cli.options import connect, data_option
from batchyard.cli.output import json_option, lines_of, say


@click.command()
@click.option("--month", help="Such as 2026-11, of UTC [this month].")
@click.option("--by", default="day,model,project", show_default=True, help="Some of day, model, project and key.")
@click.option("--project", help="Only this project's; with an admin key all are shown otherwise.")
@click.option("--csv", "as_csv", is_flag=True, help="A csv file on standard output.")
@data_option
@json_option
def usage(month: str | None, by: str, project: str | None, as_csv: bool, data: Any, as_json: bool) -> None:
    """What was used in a month, and what it has cost, by the tariffs of models.toml at that time."""
    server, query = connect(data), {"month": month, "by": by, "project": project}
    if as_csv:
        return click.echo(server.usage_csv(**query), nl=False)
    document = server.usage(**query)
    say(document, _text(document, by.split(",")), as_json)


def _text(document: dict[str, Any], dimensions: list[str]) -> str:
    """Return usage as a table, with its total and the project's budget below."""
    columns = [*dimensions, "requests", "failed", "tokens in", "cached", "tokens out", "cost"]
    rows = [[*(line[name] for name in dimensions), *_figures(line), _money(line["cost"])] for line in document["data"]]
    total = document["total"]
    costs = ", ".join(filter(None, map(_money, total["costs"]))) or None
    rows.append(["total", *[""] * (len(dimensions) - 1), *_figures(total), costs])
    parts = [f"usage in {document['month']}", lines_of(columns, rows)]
    if total["unpriced_requests"] and costs:
        parts.append(f"without {total['unpriced_requests']} requests to models that have no tariff")
    budget = document["budget"]
    if budget is not None:
        spent, amount = (tariffs.text(Fraction(budget[name]), budget["currency"]) for name in ("spent", "amount"))
        parts.append(f"budget: {spent} of {amount} spent in {budget['month']} ({budget['state']})")
    return "\n".join(parts)


def _figures(amounts: dict[str, Any]) -> list[int]:
    return [amounts[name] for name in ("requests", "failed", "input_tokens", "cached_tokens", "output_tokens")]


def _money(cost: dict[str, Any] | None) -> str | None:
    return None if cost is None else tariffs.text(Fraction(cost["amount"]), cost["currency"])
