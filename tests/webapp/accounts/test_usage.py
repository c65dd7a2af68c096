"""GET /v1/usage says what was used and what it has cost, each project's for itself; budgets are administrators'."""

from __future__ import annotations

import csv
import io
from fractions import Fraction
from typing import Any

import pytest
from flask.testing import FlaskClient

from batchyard.models import Tariff
from store import keys
from store.accounting.months import Month, day_text
from tasks.context import AppContext
from tests.support.spending import MILLION, spend
from tests.support.webapps import client_of, project_of


@pytest.fixture
def admin(context: AppContext) -> FlaskClient:
    return client_of(context, admin=True)


@pytest.fixture
def other(context: AppContext) -> FlaskClient:
    """A client of another project."""
    return client_of(context, project="other")


def usage(client: FlaskClient, **query: str) -> dict[str, Any]:
    answer = client.get("/v1/usage", query_string=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.get_json())


def test_a_project_sees_its_own_usage_and_an_administrator_all(
    context: AppContext, client: FlaskClient, other: FlaskClient, admin: FlaskClient
) -> None:
    spend(context.database, project_of(context), 3, output_tokens=5, failed=1, shared_requests=2)
    spend(context.database, project_of(context, "other"), 4)
    (line,) = usage(other)["data"]
    assert (line["project"], line["cost"]) == ("other", {"amount": "4.00", "currency": "EUR"})
    (line,) = usage(client)["data"]
    own = ("day", "model", "project", "requests", "failed", "shared_requests", "input_tokens", "output_tokens")
    today = line["day"]
    assert [line[name] for name in own] == [today, "echo", "default", 10, 1, 2, MILLION, 5]
    assert [line["project"] for line in usage(admin, by="project")["data"]] == ["default", "other"]
    assert usage(admin)["total"]["costs"] == [{"amount": "7.00", "currency": "EUR"}]
    assert usage(admin, project="other")["total"]["costs"] == [{"amount": "4.00", "currency": "EUR"}]
    assert usage(client, project="default") == usage(client)


def test_another_projects_usage_is_as_unknown_as_one_that_is_not_there(
    context: AppContext, client: FlaskClient, other: FlaskClient
) -> None:
    answers = [client.get(f"/v1/usage?project={name}") for name in ("other", "nowhere")]
    messages = [answer.get_json()["error"]["message"].replace("nowhere", "other") for answer in answers]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert messages[0] == messages[1]


def test_usage_is_of_one_month_and_by_what_one_wants(context: AppContext, client: FlaskClient) -> None:
    with context.database.write() as session:
        key = keys.create(session, "default", label="nightly")
    first = Month(2026, 2).first
    for day, model in ((first, "a"), (first + 27, "b"), (first + 28, "a")):
        spend(context.database, project_of(context), 1, at=day * 86400.0, model=model, key_id=key.id)
    february = usage(client, month="2026-02", by="day")
    assert [line["day"] for line in february["data"]] == ["2026-02-01", "2026-02-28"]
    assert february["data"][0]["model"] is None
    assert [(line["key"], line["key_id"]) for line in usage(client, month="2026-02", by="key")["data"]] == [
        ("nightly", key.id)
    ]
    assert usage(client, month="2025-01")["data"] == []
    for wrong in ({"month": "2026-13"}, {"month": "soon"}, {"by": "week"}, {"by": "day,day"}):
        assert client.get("/v1/usage", query_string=wrong).status_code == 400, wrong


def test_what_has_no_tariff_is_counted_and_currencies_are_not_added(context: AppContext, client: FlaskClient) -> None:
    project = project_of(context)
    spend(context.database, project, 1)
    spend(context.database, project, 2, currency="USD")
    spend(context.database, project, None, model="free")
    found = usage(client, by="model")
    costs = [(line["model"], line["cost"] and line["cost"]["currency"]) for line in found["data"]]
    assert costs == [("echo", "EUR"), ("echo", "USD"), ("free", None)]
    assert [cost["amount"] for cost in found["total"]["costs"]] == ["1.00", "2.00"]
    assert found["total"]["unpriced_requests"] == 10


def test_usage_comes_as_csv_too_with_names_that_are_no_formulas(context: AppContext, client: FlaskClient) -> None:
    spend(context.database, project_of(context), 1, model="=cmd()")
    spend(context.database, project_of(context), 2, model="plain")
    answer = client.get("/v1/usage.csv?by=day,model")
    assert answer.mimetype == "text/csv"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["model"] for row in rows] == ["'=cmd()", "plain"]
    assert sum(Fraction(row["cost"]) for row in rows) == 3
    assert list(rows[0])[:3] == ["day", "model", "requests"]


def test_a_project_sees_its_budget(context: AppContext, client: FlaskClient, admin: FlaskClient) -> None:
    path = f"/v1/projects/{project_of(context)}/budget"
    assert usage(client)["budget"] is None
    admin.post(path, json={"amount": 10, "currency": "EUR"})
    spend(context.database, project_of(context), 9)
    assert usage(client)["budget"] == admin.get(path).get_json()


def test_days_are_those_of_utc() -> None:
    assert day_text(Month(2024, 2).end - 1) == "2024-02-29"
    assert Month(2026, 12).next == Month(2027, 1)
    assert Month(2027, 1).previous == Month(2026, 12)
    assert Month.parse("2026-11").first * 86400 == 1793491200


def test_costs_at_a_corrected_price_are_shown_and_then_recorded_and_count_against_caps(
    context: AppContext, client: FlaskClient, admin: FlaskClient
) -> None:
    made = admin.post("/v1/keys", json={"project": "default", "max_cost": "5 EUR"}).get_json()
    today = Month.of()
    spend(context.database, project_of(context), 9, key_id=made["id"])
    spend(context.database, project_of(context), None)
    spend(context.database, project_of(context), 3, model="unserved")
    spend(context.database, project_of(context), 50, at=today.first * 86400 - 1)
    assert cap(admin, made["id"]) == ("9.00", "exceeded")
    context.models["echo"] = context.models["echo"].model_copy(
        update={"price": Tariff(currency="EUR", input=2, output=3)}
    )
    body = {"since": day_text(today.first)}
    assert client.post("/v1/usage/recompute", json=body).status_code == 403
    assert admin.post("/v1/usage/recompute", json={"since": "soon"}).get_json()["error"]["param"] == "since"
    shown = admin.post("/v1/usage/recompute", json=body).get_json()
    assert shown["data"] == [
        {
            "model": "echo",
            "before": [{"amount": "9.00", "currency": "EUR"}],
            "after": [{"amount": "4.00", "currency": "EUR"}],
            "unpriced_requests": 10,
        }
    ]
    assert not shown["written"] and cap(admin, made["id"]) == ("9.00", "exceeded")
    assert admin.post("/v1/usage/recompute", json=body | {"write": True}).get_json()["data"] == shown["data"]
    assert cap(admin, made["id"]) == ("2.00", "ok")
    assert usage(admin)["total"]["costs"] == [{"amount": "7.00", "currency": "EUR"}], "one model has no price now"
    assert usage(admin, month=str(today.previous))["total"]["costs"] == [{"amount": "50.00", "currency": "EUR"}]
    assert admin.post("/v1/usage/recompute", json=body).get_json()["data"] == []
    acts = [entry["type"] for entry in admin.get("/v1/audit").get_json()["data"]]
    assert acts.count("usage.recomputed") == 1


def cap(admin: FlaskClient, key_id: str) -> tuple[str, str]:
    key = next(one for one in admin.get("/v1/keys").get_json()["data"] if one["id"] == key_id)
    return key["cap"]["spent"], key["cap"]["state"]
