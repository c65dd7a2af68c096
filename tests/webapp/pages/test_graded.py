"""Scored batches: what was right and wrong is seen, found, taken away and compared."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Page, expect

from store import keys
from store.records import Batch
from tasks.context import AppContext
from tests.support.planned import answers, end_batch, finish_segment, plan_batch
from tests.support.webapps import project_of
from tests.webapp.pages.conftest import Visit
from tests.webapp.pages.test_compare import shown, words

TOTAL = 40
EXPECTED = {line: (f"answer {line}", "capitals" if line % 2 else "sums & more") for line in range(1, TOTAL)}
GREEN, RED = "rgb(23, 105, 58)", "rgb(163, 32, 28)"
NASTY = "</pre><img src=x onerror=alert(1)>"


def scored(
    context: AppContext,
    wrong: Mapping[int, str],
    *,
    failed: Mapping[int, str] | None = None,
    expected: Mapping[int, tuple[str, str]] = EXPECTED,
) -> Batch:
    """An ended, scored batch of 40 requests with these wrong answers; the last request has no expected answer."""
    questions = [f"question {line}" for line in range(1, TOTAL + 1)]
    batch = plan_batch(context, project_of(context), questions, post_process=["score"], expected=expected)
    texts = {line: f"answer {line}" for line in range(1, TOTAL + 1)} | dict(wrong)
    finish_segment(context, batch, answers(range(1, TOTAL + 1), texts=texts, failed=failed))
    return end_batch(context, batch)


@pytest.fixture
def batch(context: AppContext, client: FlaskClient) -> Batch:
    """Lines 8, 9 and 30 are wrong, and 31 failed."""
    return scored(context, {8: "seven", 9: NASTY, 30: "answer 31"}, failed={31: "timeout"})


@pytest.fixture
def sign_in(visit_served: Callable[..., Visit], context: AppContext) -> Callable[..., tuple[Visit, Page]]:
    """Opens a page in a browser, signed in."""

    def sign_in(path: str = "/") -> tuple[Visit, Page]:
        with context.database.write() as session:
            key = keys.create(session, "default").key
        window = visit_served()
        return window, window.sign_in(key, path)

    return sign_in


def lines(page: str) -> list[int]:
    return [int(line) for line in re.findall(r'<article class="pair[^"]*" aria-label="line (\d+)"', page)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("grade=wrong", [8, 9, 30, 31]),
        ("grade=unscored", [40]),
        ("grade=wrong&task=capitals", [9, 31]),
        ("grade=wrong&task=sums+%26+more&state=succeeded", [8, 30]),
        ("grade=right&custom_id=r1", [1, *range(10, 20)]),
        ("grade=right&text=answer+12", [12]),
    ],
)
def test_requests_are_found_by_their_grade(client: FlaskClient, batch: Batch, query: str, expected: list[int]) -> None:
    assert lines(client.get(f"/batches/{batch.id}/requests?{query}").text) == expected


def test_wrong_answers_are_taken_away_as_csv(client: FlaskClient, batch: Batch) -> None:
    content = client.get(f"/batches/{batch.id}/results.csv?grade=wrong").text
    assert [row["custom_id"] for row in csv.DictReader(io.StringIO(content))] == ["r8", "r9", "r30", "r31"]


def test_a_grade_that_does_not_exist_is_refused_and_one_of_an_unscored_batch_finds_nothing(
    client: FlaskClient, context: AppContext, batch: Batch
) -> None:
    assert client.get(f"/batches/{batch.id}/requests?grade=good").status_code == 400
    unscored = scored(context, {}, expected={})
    page = client.get(f"/batches/{unscored.id}/requests?grade=wrong").text
    assert "No matching requests" in page and 'id="grade"' not in page
    assert "% right" not in client.get("/").text.partition(unscored.id)[2].partition("</tr>")[0]


def test_a_batch_with_nothing_wrong_leads_to_what_was_right(client: FlaskClient, context: AppContext) -> None:
    perfect = scored(context, {})
    row = client.get("/").text.partition(perfect.id)[2].partition("</tr>")[0]
    assert f'href="/batches/{perfect.id}/requests?grade=right">100 % right</a>' in row


def test_the_first_wrong_answer_is_one_click_from_the_start(
    sign_in: Callable[..., tuple[Visit, Page]], batch: Batch
) -> None:
    window, page = sign_in()
    page.locator(f"tr#{batch.id}").get_by_role("link", name="89.7 % right").click()
    expect(page.get_by_role("status").last).to_contain_text("4 requests of 40")
    first = page.locator("article.pair").first
    expect(first).to_contain_text("line 8")
    expect(first).to_contain_text("wrong")
    expect(first.locator(".answer")).to_contain_text("seven")
    expect(first.locator(".expected")).to_contain_text("answer 8")
    window.check_accessibility()
    first.get_by_role("link").click()
    expect(page.get_by_label("Outcome")).to_contain_text("wrong")
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("r9")
    window.check_phone_in_the_dark()


def test_a_group_of_a_batch_leads_to_its_wrong_answers(
    sign_in: Callable[..., tuple[Visit, Page]], batch: Batch
) -> None:
    window, page = sign_in(f"/batches/{batch.id}")
    expect(page.get_by_role("link", name="4 wrong")).to_have_attribute("href", re.compile("grade=wrong"))
    window.check_accessibility()
    page.get_by_role("listitem").filter(has_text="sums & more").get_by_role("link").click()
    expect(page.locator("article.pair")).to_have_count(2)
    form = page.get_by_role("search", name="Requests")
    form.get_by_label("Group").select_option("capitals (18 of 20 right)")
    form.get_by_label("Answer").select_option("right (35)")
    form.get_by_role("button", name="Find").click()
    expect(page.get_by_role("status").last).to_contain_text("18 requests of 40")
    window.check_phone_in_the_dark()


def test_what_got_worse_is_seen_side_by_side(
    sign_in: Callable[..., tuple[Visit, Page]], client: FlaskClient, context: AppContext, batch: Batch
) -> None:
    other = scored(context, {8: "seven", 10: "nine", 12: "eleven", 40: "other words"})
    path = f"/compare?a={batch.id}&b={other.id}"
    text = words(client.get(path).text)
    for part in (
        "3 got better right in the second only 2 got worse right in the first only 34 right in both 1 right in neither",
        "Right in sums &amp; more 89.5 % 17 of 19 84.2 % 16 of 19 -5.3 points",
        "Right in capitals 90.0 % 18 of 20 100 % 20 of 20 +10.0 points",
    ):
        assert part in text, text
    assert shown(client.get(f"{path}&only=differ").text) == ["r9", "r10", "r12", "r30", "r31", "r40"]
    assert shown(client.get(f"{path}&only=changed").text) == ["r9", "r10", "r12", "r30", "r31"]
    window, page = sign_in(path)
    page.get_by_role("link", name="2 got worse").click()
    expect(page.locator("article.worse")).to_have_count(2)
    expect(page.locator("article.pair")).to_have_count(2)
    good, bad = (page.locator(f"article.worse {side}").first for side in (".first", ".answer"))
    expect(good).to_contain_text("right")
    expect(bad).to_contain_text("wrong")
    for side, colour in ((good, GREEN), (bad, RED)):
        expect(side).to_have_css("border-left-color", colour)
    window.check_accessibility()
    page.get_by_role("link", name="Swap the two").click()
    expect(page.locator("article.better")).to_have_count(2)
    page.get_by_label("Requests").select_option("only changed")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("article.pair")).to_have_count(5)
    window.check_phone_in_the_dark()
