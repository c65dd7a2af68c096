"""Pages stay small and cost little with a full store."""

from __future__ import annotations

import cProfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import Engine, event

from store import keys
from tests.support.filling import fill
from tests.support.webapps import context_in
from tests.webapp.pages.conftest import signed_in
from webapp import create_app

MOST_BYTES = 100_000
MOST_CALLS, MOST_STEPS = 250_000, 1_000_000
"""Calls of Python functions and instructions of SQLite for a page: the same on a busy machine, unlike seconds."""
STEPS_PER_CALL = 1_000


@pytest.fixture(scope="module")
def steps() -> Iterator[list[int]]:
    """The instructions that SQLite has run, in a list of one number."""
    run = [0]

    def counted() -> int:
        run[0] += STEPS_PER_CALL
        return 0

    def connected(connection: Any, _: Any) -> None:
        connection.set_progress_handler(counted, STEPS_PER_CALL)

    event.listen(Engine, "connect", connected)
    yield run
    event.remove(Engine, "connect", connected)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, steps: list[int]) -> tuple[FlaskClient, str]:
    """A signed-in client of a store with 10,000 batches, and the id of one with 50,000 lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
        context = context_in(tmp_path_factory.mktemp("filled"))
    large = fill(context, 10_000)
    assert steps[0] > 0
    with context.database.write() as session:
        key = keys.create(session, "default", admin=True).key
    return signed_in(create_app(context).test_client(), key), large


@pytest.mark.long
@pytest.mark.parametrize(
    "path",
    [
        *("/usage", "/usage?project=default", "/files", "/files?limit=20", "/files?q=nowhere", "/files?kind=errors"),
        *("/begin", "/new?example=label", "/new/job/refine?example=refine", "/new/job/tune"),
        *("/?q=LARGE", "/?attention=1&model=echo&sort=failures"),
        *("/", "/?limit=100", "/sign-in", "/batches/{}", "/batches/{}/requests", "/batches/{}/requests/49999"),
        *("/batches/{}/requests?state=failed", "/batches/{}/requests?code=code_3&after=20001"),
        *("/batches/{}/requests?custom_id=ticket-4999", "/batches/{}/requests/49991?code=code_1"),
        "/batches/{}/requests?text=49999:",
        "/batches/{}/requests?text=nowhere+in+it",
        "/batches/{}/requests?text=product&code=code_6&before=49990",
    ],
)
def test_a_page_is_light_and_costs_little(filled: tuple[FlaskClient, str], steps: list[int], path: str) -> None:
    client, large = filled
    client.get(path.format(large))  # compiles templates and statements
    steps[0] = 0
    with cProfile.Profile() as profile:
        answer = client.get(path.format(large))
    calls = sum(entry.callcount for entry in profile.getstats())
    print(f"{path}: {len(answer.data):,} bytes, {calls:,} calls, {steps[0]:,} instructions of SQLite")
    assert answer.status_code == 200
    assert len(answer.data) < MOST_BYTES
    assert calls < MOST_CALLS
    assert steps[0] < MOST_STEPS


def test_errors_are_grouped_with_a_few_examples(filled: tuple[FlaskClient, str]) -> None:
    client, large = filled
    page = client.get(f"/batches/{large}").text
    errors = page.partition('id="errors-heading"')[2].partition("</section>")[0]
    assert [f"code_{number}" in errors for number in range(7)] == [True] * 7
    assert errors.count("<li>") == 21
    assert "line 11" in errors and "ticket-10<" in errors


def test_assets_are_small(filled: tuple[FlaskClient, str]) -> None:
    static = Path(str(filled[0].application.static_folder))
    names = ("style.css", "pages.js", "icon.svg", "vendor/htmx.min.js")
    assert sum((static / name).stat().st_size for name in names) < 80_000
