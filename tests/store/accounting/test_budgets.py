"""A budget stands in one of three states, and each step is announced once a month."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import select, update

from batchyard import tariffs
from batchyard.errors import NotFoundError, RequestError
from batchyard.models import ModelSpec, Tariff
from store import events
from store.accounting import budgets
from store.accounting.budgets import Standing
from store.accounting.months import Month
from store.database import Database
from store.keys import Principal
from store.records import Budget, Event
from tests.support.spending import spend
from tests.support.webapps import on_sqlite

pytestmark = pytest.mark.usefixtures("frozen_time")  # what is spent is of the month in which one looks


def settle(database: Database, me: Principal, amount: int = 10, **changes: Any) -> Standing:
    terms: dict[str, Any] = {"currency": "EUR", "warn_at": 80, "when_exceeded": "finish"} | changes
    with database.write() as session:
        return budgets.change(session, me, me.project_id, amount=Decimal(amount), **terms)


def announced(database: Database) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(Event.type).where(Event.key_id.is_(None)).order_by(Event.id)))


def standing(spent: str, *, amount: int = 10, warn_at: int = 80) -> Standing:
    budget = Budget(
        project_id="proj", amount=amount * tariffs.MICRO, currency="EUR", warn_at=warn_at, when_exceeded="finish"
    )
    return Standing(budget, Month(2026, 11), Fraction(spent))


@pytest.mark.parametrize(
    ("spent", "state"),
    [
        ("0", "ok"),
        ("7.999999", "ok"),
        ("8", "warning"),
        ("9.999999", "warning"),
        ("10", "exceeded"),
        ("11", "exceeded"),
    ],
)
def test_a_budget_warns_and_is_exceeded_exactly_at_its_limits(spent: str, state: str) -> None:
    assert standing(spent).state == state


def test_a_budget_of_nothing_is_exceeded_at_once() -> None:
    assert standing("0", amount=0).state == "exceeded"


def test_clients_see_amounts_as_decimals() -> None:
    document = standing("2.5").document
    assert (document["amount"], document["spent"], document["month"]) == ("10.00", "2.50", "2026-11")
    assert (document["state"], document["currency"], document["when_exceeded"]) == ("ok", "EUR", "finish")


@on_sqlite
def test_there_is_no_budget_of_a_project_that_is_not_there(database: Database, me: Principal) -> None:
    with pytest.raises(NotFoundError), database.write() as session:
        budgets.change(session, me, "proj_none", amount=Decimal(1), currency="EUR", warn_at=80, when_exceeded="finish")


@on_sqlite
def test_of_two_that_see_the_same_step_one_announces_it(database: Database, me: Principal) -> None:
    settle(database, me)
    spend(database, me.project_id, 9)
    with database.read() as session:
        seen = [budgets.standing(session, me.project_id) for _ in range(2)]
    (first, second) = [one for one in seen if one is not None]
    with database.write() as session:
        assert budgets.is_news(first)
        assert budgets.announce(session, first)
    with database.write() as session:
        assert not budgets.announce(session, Standing(_as_before(second), second.month, second.spent))
    assert announced(database) == ["budget.warning"]
    with database.read() as session:
        assert budgets.noticed(session, me.project_id) == "warning"


def _as_before(standing: Standing) -> Budget:
    budget = standing.budget
    names = ("project_id", "key_id", "amount", "currency", "warn_at", "when_exceeded")
    values = {name: getattr(budget, name) for name in names}
    return Budget(**values, notice=None)


@on_sqlite
def test_a_budget_that_stands_better_is_noted_and_not_announced(database: Database, me: Principal) -> None:
    spend(database, me.project_id, 10)
    assert settle(database, me).state == "exceeded"
    assert settle(database, me, 12).state == "warning"
    assert announced(database) == ["budget.exceeded"]
    with database.read() as session:
        assert budgets.noticed(session, me.project_id) == "warning"


@on_sqlite
def test_a_notice_of_an_earlier_month_says_nothing_of_this_one(database: Database, me: Principal) -> None:
    spend(database, me.project_id, 10)
    settle(database, me)
    with database.write() as session:
        session.execute(update(Budget).values(notice=f"{Month.of().previous} exceeded"))
        assert budgets.noticed(session, me.project_id) == "ok"
        (current,) = budgets.standings(session)
        assert budgets.is_news(current) and budgets.announce(session, current)
    assert announced(database) == ["budget.exceeded", "budget.exceeded"]


@on_sqlite
def test_who_sets_and_removes_a_budget_is_on_record(database: Database, me: Principal) -> None:
    settle(database, me)
    with database.write() as session:
        for _ in range(2):
            budgets.remove(session, me, me.project_id)
        recorded, _ = events.actions(session, me.project_id, after=None, limit=9)
        assert budgets.standing(session, me.project_id) is None
    assert [(event.type, event.key_name) for event in recorded] == [
        ("budget.removed", "ada"),
        ("budget.changed", "ada"),
    ]
    assert recorded[1].data["amount"] == "10.00 EUR"


def models(currency: str | None) -> dict[str, ModelSpec]:
    price = None if currency is None else Tariff(currency=currency, hour=Decimal(1))
    return {"echo": ModelSpec(name="echo", engine="echo", price=price)}


def test_a_budget_in_another_currency_than_the_tariffs_is_refused() -> None:
    budgets.check_currency("EUR", models("EUR"))
    budgets.check_currency("EUR", models(None))  # prices may follow
    with pytest.raises(RequestError, match="tariffs are in EUR, and nothing counts against a budget in USD"):
        budgets.check_currency("USD", models("EUR"))


@on_sqlite
@pytest.mark.parametrize("currency", ["USD", None])
def test_a_budget_that_no_price_counts_against_any_more_is_warned_of_by_its_projects_name(
    database: Database, me: Principal, currency: str | None
) -> None:
    settle(database, me)
    with database.read() as session:
        assert budgets.without_effect(session, models("EUR")) == []
        (warning,) = budgets.without_effect(session, models(currency))
    assert warning.startswith("the budget of project default is in EUR, and no price of models.toml is")
