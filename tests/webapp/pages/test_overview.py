"""/: one list of batches and jobs, its filters, and what is done to several at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select, update

from store import batches, keys
from store.records import Batch, Project
from tasks.context import AppContext
from tests.support.planned import answers, append, plan_batch, started
from tests.webapp.pages.conftest import signed_in
from webapp import create_app

Make = Callable[..., Batch]


@pytest.fixture
def make(client: FlaskClient, context: AppContext) -> Make:
    """Creates a batch in the client's project, with these values in its record."""
    with context.database.read() as session:
        project_id = session.scalars(select(Project.id)).one()

    def make_(**values: Any) -> Batch:
        batch = plan_batch(context, project_id, ["one", "two"])
        with context.database.write() as session:
            session.execute(update(Batch).where(Batch.id == batch.id).values(**values or {"sla": "on_track"}))
            return session.get_one(Batch, batch.id)

    return make_


def rows(page: str) -> dict[str, str]:
    """The text of each row of the list, by id."""
    found = re.findall(r'<tr id="([^"]+)">(.*?)</tr>', page, re.DOTALL)
    return {work_id: " ".join(re.sub(r"<[^>]+>", " ", row).split()) for work_id, row in found}


def test_what_is_paused_is_listed_by_that_and_says_by_whom(client: FlaskClient, make: Make) -> None:
    make()
    paused = make(paused_at=2_000_000_000, paused_by="ada <b>")
    assert rows(client.get("/?status=paused").text).keys() == {paused.id}
    assert "paused by ada &lt;b&gt;" in rows(client.get("/").text)[paused.id]
    page = client.get(f"/batches/{paused.id}").text
    assert "none: paused by <bdi>ada &lt;b&gt;</bdi>" in page
    assert "Resume" in page and "Pause this batch?" not in page


def test_answers_with_flaws_are_said_in_the_list_and_on_the_batchs_page(client: FlaskClient, make: Make) -> None:
    flawed, whole = make(completed=2, cut_off=1994, empty=3, invalid=5), make()
    said = "1,994 cut off at their limit of tokens, 3 empty, 5 not in the form that was asked for"
    listed = rows(client.get("/").text)
    assert said in listed[flawed.id] and "cut off" not in listed[whole.id]
    assert said in client.get(f"/batches/{flawed.id}").text


def test_success_is_said_only_of_what_succeeded(client: FlaskClient, make: Make) -> None:
    ended = {"status": "completed", "completed_at": 2_000_000_000, "total": 10}
    good = make(**ended, completed=10)
    partly = make(**ended, completed=8, failed=2)
    none = make(**ended, failed=10)
    invalid = make(status="failed", failed_at=2_000_000_000, total=0)
    listed = rows(client.get("/").text)
    assert " completed echo" in listed[good.id]
    assert "completed, 2 failed" in listed[partly.id]
    assert "completed, all failed" in listed[none.id]
    for batch, words in ((partly, "completed, 2 failed"), (none, "completed, all failed"), (invalid, "failed")):
        page = client.get(f"/batches/{batch.id}").text
        header = page.partition("<header>")[2].partition("</header>")[0]
        assert words in header and "on track" not in page
        assert ("completed" in re.findall(r'class="state ([a-z]+)"', header)) is False


def test_the_list_is_sent_again_only_when_something_has_changed(client: FlaskClient, make: Make) -> None:
    def poll(page: str) -> Any:
        path = re.search(r'hx-get="([^"]*seen=[^"]*)"', page)
        assert path is not None
        return client.get(path[1].replace("&amp;", "&"), headers={"HX-Request": "true"})

    empty = poll(client.get("/").text)
    assert (empty.status_code, empty.data) == (204, b"")
    batch = make()
    changed = poll(client.get("/?q=in.jsonl").text)
    assert changed.status_code == 200 and batch.id in changed.text, "while something runs, it is"
    assert "<html" not in changed.text


def test_filters_and_order_stand_in_the_url_and_every_page_keeps_them(client: FlaskClient, make: Make) -> None:
    made = [make(name=f"evals {number}", failed=number) for number in range(3)]
    make(name="other")
    page = client.get("/?q=EVALS&sort=failures&limit=2").text
    assert list(rows(page)) == [made[2].id, made[1].id]
    following = re.search(r'<a href="([^"]+)" rel="next">', page)
    assert following is not None
    page = client.get(following[1].replace("&amp;", "&")).text
    assert list(rows(page)) == [made[0].id]
    assert 'value="EVALS"' in page and '<option value="failures" selected>' in page
    assert "No matches" in client.get("/?q=nowhere").text
    for wrong in ("status=lost", "sort=luck", "since=1y", "after=batch_1"):
        assert client.get(f"/?{wrong}").status_code == 400, wrong


@pytest.mark.parametrize("path", ["/", "/files", "/usage", "/schedules"])
def test_a_filter_that_a_page_does_not_have_is_refused_by_its_name(client: FlaskClient, path: str) -> None:
    answer = client.get(f"{path}?state=bogus")
    assert answer.status_code == 400
    assert "Unknown parameter: &#39;state&#39;." in answer.text
    assert ("Did you mean &#39;status&#39;?" in answer.text) == (path == "/")


def test_batches_of_one_name_are_told_apart_by_model_and_time_or_else_by_their_ids(
    client: FlaskClient, make: Make
) -> None:
    large, early, one, other = (
        make(models={model: {"engine": "echo"}}, created_at=1_600_000_000 + hour * 3600)
        for model, hour in (("large", 2), ("echo", 1), ("echo", 2), ("echo", 2))
    )
    alone = make(name="alone", created_at=1_600_000_000)
    listed = rows(client.get("/").text)
    assert "simulated large waiting" in listed[large.id] and "2020-09-13 14:26:40 UTC" in listed[large.id]
    assert "simulated echo waiting" in listed[early.id] and "2020-09-13 13:26:40 UTC" in listed[early.id]
    assert all(f"echo, …{batch.id[-12:]} waiting" in listed[batch.id] for batch in (one, other))
    assert "simulated waiting" in listed[alone.id] and "UTC" not in listed[alone.id]


def test_the_list_is_what_runs_then_what_needs_me_then_what_has_finished(client: FlaskClient, make: Make) -> None:
    ended = {"status": "completed", "completed_at": 2_000_000_000, "total": 2}
    finished, failed = make(**ended, completed=2), make(**ended, completed=1, failed=1)
    late, running = make(sla="late"), make()
    page = client.get("/").text
    order = ("Running", running.id, "Needs attention", late.id, failed.id, "Finished", finished.id)
    places = [page.index(f'rowgroup">{part}<' if part[0].isupper() else f'id="{part}"') for part in order]
    assert places == sorted(places)
    tabs = re.findall(r'<a href="([^"]+)"[^>]*>(Running|Needs attention|Finished) <strong>(\d)</strong>', page)
    assert [int(number) for _, _, number in tabs] == [2, 2, 2]
    shown = [rows(client.get(path.replace("&amp;", "&")).text).keys() for path, _, _ in tabs]
    assert shown == [{late.id, running.id}, {late.id, failed.id}, {failed.id, finished.id}]
    first = client.get("/?limit=2").text
    following = re.search(r'<a href="([^"]+)" rel="next">', first)
    assert following is not None
    rest = client.get(following[1].replace("&amp;", "&")).text
    assert [*rows(first), *rows(rest)] == [running.id, late.id, failed.id, finished.id]


def test_the_creator_of_a_batch_is_its_keys_label(client: FlaskClient, context: AppContext, make: Make) -> None:
    with context.database.write() as session:
        theirs = keys.create(session, "default", label="nightly <job>")
    batch, other = make(created_by=theirs.id), make()
    page = client.get("/").text
    assert "nightly &lt;job&gt;" in rows(page)[batch.id]
    assert list(rows(client.get(f"/?creator={theirs.id}").text)) == [batch.id] != [other.id]


def test_another_projects_batch_is_not_listed(context: AppContext, make: Make) -> None:
    batch = make()
    with context.database.write() as session:
        key = keys.create(session, "other").key
    theirs = signed_in(create_app(context).test_client(), key)
    assert rows(theirs.get(f"/?q={batch.id}").text) == {}


def test_answers_errors_and_files_of_a_running_batch_are_fetched_again_when_there_are_more(
    client: FlaskClient, context: AppContext, make: Make
) -> None:
    batch = make()
    lease = started(context.database, batch)
    page = client.get(f"/batches/{batch.id}").text
    poll = re.search(r'hx-get="([^"]*seen=[^"]*)" hx-trigger="[^"]*" hx-select="#rest"', page)
    assert poll is not None
    assert client.get(poll[1], headers={"HX-Request": "true"}).status_code == 204
    append(context, lease, answers([1]))
    answer = client.get(poll[1], headers={"HX-Request": "true"})
    assert answer.status_code == 200 and "to r1" in answer.text and 'id="rest"' in answer.text
    with context.database.write() as session:
        batches.transition(session, batch.id, "in_progress", "finalizing", outcome="expired")
        batches.transition(session, batch.id, "finalizing", "expired")
    assert client.get(poll[1], headers={"HX-Request": "true"}).headers["HX-Refresh"] == "true"
