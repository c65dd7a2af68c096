"""/compare: two batches side by side, and the answers that differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import expect
from sqlalchemy import update

from store import keys
from store.records import Batch, DailyUsage
from tasks.context import AppContext
from tests.support.planned import answers, append, end_batch, finish_segment, plan_batch, started
from tests.support.spending import spend
from tests.support.webapps import project_of
from tests.support.written_jobs import Written
from tests.webapp.pages.conftest import Visit, signed_in
from webapp import create_app

NASTY = "</pre><img src=x onerror=alert(1)>"


def ended(
    context: AppContext,
    number: int,
    *,
    texts: Mapping[int, str] | None = None,
    failed: Mapping[int, str] | None = None,
    custom_ids: Mapping[int, str] | None = None,
    output_tokens: int = 0,
) -> Batch:
    """An ended batch of that many requests, with these answers and errors by line."""
    batch = plan_batch(
        context,
        project_of(context),
        [f"question {line}" for line in range(1, number + 1)],
        segment_requests=number,
        custom_ids=custom_ids,
    )
    table = answers(range(1, number + 1), failed=failed, texts=texts, custom_ids=custom_ids)
    finish_segment(context, batch, table)
    end_batch(context, batch)
    with context.database.write() as session:
        session.execute(update(Batch).where(Batch.id == batch.id).values(output_tokens=output_tokens))
    return batch


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def shown(page: str) -> list[str]:
    """The custom_ids of the pairs on a page."""
    return re.findall(r'<article class="pair[^"]*" aria-label="([^"]*)"', page)


def test_figures_of_two_batches_stand_beside_each_other_with_the_change(
    client: FlaskClient, context: AppContext
) -> None:
    one = ended(context, 10, failed={3: "timeout"}, output_tokens=18)
    other = ended(context, 8, failed={3: "timeout", 4: "too_long"}, output_tokens=24)
    text = words(client.get(f"/compare?a={one.id}&b={other.id}").text)
    for part in (
        *("Requests 10 8 -20.0 %", "Failed 1 2 +100.0 %", "Output tokens 18 24 +33.3 %", "p95 0.49 s 0.49 s the same"),
        *("Error timeout 1 1", "Error too_long 0 1", "8 requests have the same custom_id in both; 2 are in"),
        "0 got better succeeded in the second only 1 got worse succeeded in the first only",
        "6 succeeded in both 1 succeeded in neither",
    ):
        assert part in text, text


def test_prompts_that_differ_stand_beside_each_other_and_nothing_got_worse(
    client: FlaskClient, context: AppContext
) -> None:
    one = ended(context, 2)
    other = plan_batch(context, project_of(context), ["question 1", "another question"], segment_requests=2)
    finish_segment(context, other, answers(range(1, 3)))
    end_batch(context, other)
    page = client.get(f"/compare?a={one.id}&b={other.id}&only=").text
    text = words(page)
    assert "got worse" not in text and "neither is better: 2 succeeded in both" in text
    assert "Prompts 1 differ of 2" in text
    assert text.count("question 1") == 1 and "different prompts" in text
    assert "question 2" in text and "another question" in text
    assert all(batch.id[-12:] in text for batch in (one, other))


def test_what_two_batches_have_cost_is_compared_in_one_currency(client: FlaskClient, context: AppContext) -> None:
    one, other = ended(context, 1), ended(context, 1)
    path = f"/compare?a={one.id}&b={other.id}"
    assert "Cost" not in words(client.get(path).text)
    for batch, euros in ((one, 4), (other, 5)):
        spent = spend(context.database, project_of(context), euros, model="priced")
        with context.database.write() as session:
            session.execute(update(DailyUsage).where(DailyUsage.batch_id == spent).values(batch_id=batch.id))
    assert re.search(r"Cost \S*4\S*( EUR)? \S*5\S*( EUR)? \+25\.0 %", words(client.get(path).text))
    with context.database.write() as session:
        session.execute(
            update(DailyUsage)
            .where(DailyUsage.batch_id == other.id, DailyUsage.model == "priced")
            .values(currency="USD")
        )
    assert "+25.0 %" not in words(client.get(path).text)


def test_answers_are_matched_by_custom_id_whatever_their_lines_are(client: FlaskClient, context: AppContext) -> None:
    one = ended(context, 3, texts={1: "yes", 2: NASTY, 3: "left"})
    swapped = {1: "r3", 2: "r1", 3: "r2"}
    other = ended(context, 3, texts={1: "right", 2: "yes", 3: NASTY}, custom_ids=swapped)
    page = client.get(f"/compare?a={one.id}&b={other.id}&only=").text
    assert shown(page) == ["r1", "r2", "r3"] and page.count("differs") == 1
    assert "onerror" in page and "<img src=x" not in page and "Answers 1 differ of 3" in words(page)
    different = client.get(f"/compare?a={one.id}&b={other.id}").text
    assert shown(different) == ["r3"]
    sides = r"r3 differs different prompts line 3 0\.5 s question 3 left line 1 0\.5 s question 1 right"
    assert re.search(sides, words(different))


def test_two_jobs_are_compared_by_the_requests_of_their_first_stages(client: FlaskClient, context: AppContext) -> None:
    jobs = []
    for temperature, system in ((0, "Be brief."), (0.7, "Be brief and kind.")):
        job = Written(context, project_of(context))
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "Why?"}]
        lines = job.ask("argue", (0, 1, 0, 0), (1, 1, 0, 0), messages=messages, temperature=temperature)
        job.answer("argue", dict(zip(lines, (f"It is {system}", "It is so."), strict=True)), segment=0)
        jobs.append(job.job.id)
    page = client.get("/compare?a={}&b={}".format(*jobs)).text
    for part in (
        "system message Be brief. → Be brief and kind. temperature 0 → 0.7 Prompts the same of 2 Answers 1 differ of 2",
        "It is Be brief and kind.",
    ):
        assert part in words(page), words(page)
    assert f'href="/jobs/{jobs[0]}"' in page and len(shown(page)) == 1
    assert client.get(f"/compare?a={jobs[0]}&b=job_none").status_code == 404


def test_what_failed_in_the_same_way_does_not_differ_and_what_failed_once_does(
    client: FlaskClient, context: AppContext
) -> None:
    one = ended(context, 4, failed={1: "timeout", 2: "timeout", 3: "timeout"})
    other = ended(context, 4, failed={1: "timeout", 2: "too_long"})
    page = client.get(f"/compare?a={one.id}&b={other.id}&only=differ").text
    assert shown(page) == ["r2", "r3"]


def test_pages_of_what_differs_go_on_where_the_last_one_stopped(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    different = {line: f"other {line}" for line in range(1, 101, 3)}
    one, other = ended(context, 100), ended(context, 100, texts=different)
    path, pages, ids = f"/compare?a={one.id}&b={other.id}&only=differ", 0, list[str]()
    monkeypatch.setattr("results.pairs.COMPARED_BYTES", 20_000)
    following: str | None = path
    while following is not None:
        page = client.get(following).text
        pages, ids = pages + 1, ids + shown(page)
        link = re.search(r'rel="next" href="([^"]+)"', page)
        following = link and link[1].replace("&amp;", "&")
        assert pages < 100
    assert ids == [f"r{line}" for line in different] and pages > 2
    monkeypatch.undo()
    assert len(shown(client.get(f"/compare?a={one.id}&b={other.id}&only=").text)) == 25


def test_a_batch_that_runs_is_compared_with_one_that_has_ended(client: FlaskClient, context: AppContext) -> None:
    one = ended(context, 3)
    running = plan_batch(context, project_of(context), ["one", "two", "three"])
    append(context, started(context.database, running), answers([2], texts={2: "new"}))
    page = client.get(f"/compare?a={one.id}&b={running.id}").text
    assert shown(page) == ["r1", "r2", "r3"] and page.count("not answered yet") == 2
    assert "neither is better: 1 succeeded in both, 0 in neither." in words(page)


def test_two_ticked_batches_are_compared_and_anything_else_is_refused(client: FlaskClient, context: AppContext) -> None:
    one, other = ended(context, 1), ended(context, 1)
    answer = client.get("/selected", query_string={"action": "compare", "id": [other.id, one.id]})
    assert answer.location == f"/compare?a={one.id}&b={other.id}"
    answer = client.get("/selected", query_string={"action": "compare", "id": ["job_b", "job_a"]})
    assert answer.location == "/compare?a=job_a&b=job_b"
    for ids in ([one.id], [one.id, other.id, "batch_x"], [one.id, "job_x"]):
        refused = client.get("/selected", query_string={"action": "compare", "id": ids})
        assert (refused.status_code, "Tick two batches" in refused.text) == (400, True)
    for wrong in ("", f"?a={one.id}", f"?a={one.id}&b={one.id}"):
        assert client.get(f"/compare{wrong}").status_code == 400


def test_another_projects_batch_cannot_be_compared(client: FlaskClient, context: AppContext) -> None:
    one, other = ended(context, 1), ended(context, 1)
    with context.database.write() as session:
        stranger = keys.create(session, "other").key
    theirs = signed_in(create_app(context).test_client(), stranger)
    assert theirs.get(f"/compare?a={one.id}&b={other.id}").status_code == 404
    assert client.get(f"/compare?a={one.id}&b=batch_none").status_code == 404


def test_two_batches_are_chosen_in_the_list_and_compared_in_a_browser(
    visit_served: Callable[..., Visit], context: AppContext
) -> None:
    one, other = ended(context, 40), ended(context, 40, texts={2: NASTY})
    with context.database.write() as session:
        key = keys.create(session, "default").key
    window = visit_served()
    page = window.sign_in(key)
    for batch in (one, other):
        page.locator(f"tr#{batch.id}").get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare two").click()
    expect(page.locator("article.pair")).to_have_count(1)
    page.get_by_label("Requests").select_option("all")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("article.pair")).to_have_count(25)
    window.check_accessibility()
    page.get_by_role("link", name="1 differ").click()
    expect(page.locator("article.pair")).to_have_count(1)
    expect(page.locator("article.pair .answer")).to_contain_text(NASTY)
    window.check_phone_in_the_dark()
    page.locator("article.pair .answer").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("r2")
