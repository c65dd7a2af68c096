"""/usage: what was used and what it has cost; administrators set budgets there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import expect

from store import keys
from store.accounting.months import Month
from store.records import Budget
from tasks.context import AppContext
from tests.support.spending import spend
from tests.support.stacks import RunningStack, a_chat
from tests.support.webapps import project_of
from tests.webapp.pages.conftest import Visit, csrf_of, signed_in
from webapp import create_app

Open = Callable[..., Visit]


@pytest.fixture
def plain(client: FlaskClient, context: AppContext) -> FlaskClient:
    """Signed in with a key of project `plain` that is no administrator's."""
    with context.database.write() as session:
        key = keys.create(session, "plain").key
    return signed_in(create_app(context).test_client(), key)


def words(page: str) -> str:
    """The text of a page."""
    return " ".join(re.sub(r"<[^>]+>", " ", page.partition("<main")[2]).split())


def test_usage_stands_by_day_model_project_and_key(
    client: FlaskClient, plain: FlaskClient, context: AppContext
) -> None:
    spend(context.database, project_of(context), 3, model="small")
    spend(context.database, project_of(context, "plain"), 40, model="<b>large", failed=2)
    page = client.get("/usage").text
    assert "43.00 EUR" in words(page) and "&lt;b&gt;large" in page
    assert all(title in page for title in ("By day", "By model", "By project", "By key"))
    assert page.index('aria-label="Chart: Input and output tokens by day and model"') < page.index("By day")
    assert page.count('class="box series series-0"') == page.count('class="box series series-1"') > 0
    own = plain.get("/usage").text
    assert "40.00 EUR" in words(own) and "3.00 EUR" not in words(own)
    assert "By project" not in own and "Set a budget" not in own
    one = client.get("/usage?project=plain").text
    assert "40.00 EUR" in words(one) and "43.00 EUR" not in words(one)
    assert client.get("/usage?project=nowhere").status_code == plain.get("/usage?project=default").status_code == 404


def test_an_earlier_month_is_a_link_away_and_comes_as_csv(client: FlaskClient, context: AppContext) -> None:
    last = Month.of().previous
    spend(context.database, project_of(context), 7, at=last.first * 86400.0)
    page = client.get("/usage").text
    assert "No request was answered" in page and f"/usage?month={last}" in page
    assert "7.00 EUR" in words(client.get(f"/usage?month={last}").text)
    lines = client.get(f"/usage/usage.csv?month={last}").text.splitlines()
    assert lines[0].startswith("day,model,project,key,requests,") and lines[1].endswith(",7.00,EUR")
    assert client.get("/usage?month=13").status_code == 400


def test_a_budget_is_set_shown_and_removed(client: FlaskClient, plain: FlaskClient, context: AppContext) -> None:
    fields = {"csrf": csrf_of(client), "project": "plain", "currency": "EUR", "warn_at": "50", "when_exceeded": "pause"}
    assert client.post("/usage/budget", data={**fields, "amount": "10"}).status_code == 303
    with context.database.read() as session:
        (budget,) = session.query(Budget).all()
    assert (budget.amount, budget.warn_at, budget.when_exceeded) == (10_000_000, 50, "pause")
    spend(context.database, project_of(context, "plain"), 4)
    assert "within the budget 10.00 EUR per month; 4.00 EUR (40.0 %) spent" in words(client.get("/usage").text)
    assert "10.00 EUR per month" in words(plain.get("/usage").text)
    refused = client.post("/usage/budget", data={**fields, "amount": "ten"})
    assert (refused.status_code, 'role="alert"' in refused.text, 'value="ten"' in refused.text) == (400, True, True)
    assert client.post("/usage/budget", data={**fields, "amount": "1", "project": "no"}).status_code == 404
    assert plain.post("/usage/budget", data={**fields, "csrf": csrf_of(plain), "amount": "1"}).status_code == 403
    assert client.post("/usage/budget", data={**fields, "amount": ""}).status_code == 303
    with context.database.read() as session:
        assert session.query(Budget).count() == 0


def test_every_page_of_a_project_that_has_spent_its_budget_says_so(
    client: FlaskClient, plain: FlaskClient, context: AppContext
) -> None:
    spend(context.database, project_of(context, "plain"), 9)
    fields = {"csrf": csrf_of(client), "project": "plain", "currency": "EUR"}
    assert "budget" not in plain.get("/files").text
    client.post("/usage/budget", data={**fields, "amount": "10"})
    assert "nearly spent its budget" in plain.get("/files").text
    client.post("/usage/budget", data={**fields, "amount": "9"})
    assert "new batches and jobs are refused" in plain.get("/files").text
    assert "budget" not in client.get("/files").text
    sent = plain.post(
        "/new", data={"csrf": csrf_of(plain), "endpoint": "/v1/chat/completions", "model": "echo", "text": "hello"}
    )
    assert sent.status_code == 403 and "has spent 9.00 EUR of its budget" in sent.text
    fields = {"csrf": csrf_of(plain), "endpoint": "/v1/chat/completions", "model": "echo", "text": "hello"}
    preview = plain.post("/new/preview", data=fields, headers={"HX-Request": "true"}).text
    assert "This would be refused." in preview and "has spent 9.00 EUR" in preview


def test_usage_is_accessible_and_shows_a_batch_that_ran(visit: Open, stack: RunningStack) -> None:
    stack.wait(stack.submit([a_chat("a", "hello", model="other")]))
    window = visit(viewport={"width": 390, "height": 800})
    page = window.sign_in(stack.key, "/usage")
    expect(page.get_by_role("table").first).to_be_visible()
    by_model = page.get_by_role("region", name="By model")
    expect(by_model.get_by_role("rowheader", name="other", exact=True)).to_be_visible()
    page.get_by_role("combobox", name="Project", exact=True).fill("default")
    page.get_by_label("Amount per month").fill("100000")
    page.get_by_label("Currency").fill("EUR")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("within the budget")).to_be_visible()
    window.check_accessibility()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("combobox", name="Project", exact=True).fill("default")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("within the budget")).to_have_count(0)
