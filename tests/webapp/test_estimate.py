"""What a batch would cost is estimated from what the project's latest batches of the same models have used."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest
from flask.testing import FlaskClient

from batchyard.cli import view
from batchyard.models import Tariff
from store import keys
from store.records import Project
from tasks.context import AppContext
from tests.support.spending import MILLION, spend
from tests.support.webapps import client_of
from tests.webapp.pages.conftest import csrf_of, signed_in
from webapp import create_app


@pytest.fixture
def project(context: AppContext, client: FlaskClient) -> str:
    """The id of the client's project."""
    with context.database.read() as session:
        return session.query(Project).filter_by(name="default").one().id


def priced(context: AppContext) -> None:
    """Give the model a tariff: a euro for a million tokens of prompts, ten for those of answers."""
    tariff = Tariff.model_validate({"currency": "EUR", "input": 1, "output": 10})
    context.models["echo"] = context.models["echo"].model_copy(update={"price": tariff})


def dry_run(client: FlaskClient, prompts: int, **options: Any) -> Any:
    body = {"model": "echo", "prompts": ["x" * 400] * prompts, **options}
    return client.post("/start?dry_run=true", json=body).get_json()["cost"]


def test_an_estimate_says_that_nobody_knows_before_the_first_batch(context: AppContext, client: FlaskClient) -> None:
    assert dry_run(client, 2) is None, "no tariff"
    priced(context)
    assert dry_run(client, 2) == {"currency": "EUR", "amount": None, "least": None, "most": None, "batches": 0}


def test_an_estimate_is_what_the_latest_batches_used_with_their_range(
    context: AppContext, client: FlaskClient, project: str
) -> None:
    priced(context)
    other = client_of(context, project="other")
    for output in (100, 200, 600):
        used = {"requests": 10, "bytes": 5000, "input_tokens": 1000, "output_tokens": output}
        spend(context.database, project, 1, **used)
    found = dry_run(client, 100)
    # A body of about 500 bytes has about 100 tokens; an answer 10, 20 or 60, so 30 on average.
    assert found["batches"] == 3
    amount, least, most = (float(found[name]) for name in ("amount", "least", "most"))
    assert 100 * (90 + 300) < amount * MILLION < 100 * (120 + 300)
    assert 100 * (90 + 100) < least * MILLION < 100 * (120 + 100)
    assert 100 * (90 + 600) < most * MILLION < 100 * (120 + 600)
    limited = dry_run(client, 100, max_tokens=5)
    assert float(limited["most"]) * MILLION < 100 * (120 + 50), "no answer is longer than its limit"
    assert dry_run(other, 100)["amount"] is None, "what other projects used is not told"


def test_one_batch_says_little(context: AppContext, client: FlaskClient, project: str) -> None:
    priced(context)
    spend(context.database, project, 1, output_tokens=100)
    found = dry_run(client, 10)
    assert Fraction(found["least"]) * 2 <= Fraction(found["amount"]) <= Fraction(found["most"]) / 2
    assert found["batches"] == 1


def test_the_terminal_and_the_form_show_it(context: AppContext, client: FlaskClient, project: str) -> None:
    priced(context)
    body = {"model": "echo", "prompts": ["hello"]}
    assert "at a cost that nobody knows" in view.outlook(client.post("/start?dry_run=true", json=body).get_json())
    with context.database.write() as session:
        key = keys.create(session, "default").key
    visitor = signed_in(create_app(context).test_client(), key)

    def preview() -> str:
        fields = {"csrf": csrf_of(visitor), "run": "/v1/chat/completions echo", "text": "hello"}
        return visitor.post("/new/preview", data=fields, headers={"HX-Request": "true"}).text

    assert "cost is not known" in preview()
    spend(context.database, project, 1, requests=1, bytes=1, input_tokens=2_000, output_tokens=100_000)
    assert "about 1." in view.outlook(client.post("/start?dry_run=true", json=body).get_json())
    assert re.search(r"Expected cost: 1\.\d\d EUR, from 1 batch", preview())
