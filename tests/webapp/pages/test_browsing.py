"""The pages in a real browser, on a running stack."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

import httpx
import openai
import pytest
from playwright.sync_api import Page, expect

from tests.support.stacks import RunningStack, a_chat
from tests.webapp.pages.conftest import Visit

Open = Callable[..., Visit]

NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}",
    "javascript:alert(1)",
    "\u202egnp.exe",
    "x" * 3000,
    "'-alert(1)-'",
    "</pre></bdi><svg onload=alert(1)>",
]


@pytest.fixture(scope="module")
def mixed(stack: RunningStack) -> Any:
    """An ended batch with answers, failed requests and a summary of its scores."""
    requests = [
        a_chat(
            f"id-{number}",
            f"hello {number}",
            model=("echo", "failing")[number % 2],
            metadata={"expected": f"hello {number}", "task": ("greet", "fail")[number % 2]},
        )
        for number in range(60)
    ]
    return stack.wait(
        stack.submit(requests, extra_body={"post_process": [{"step": "score"}]}, metadata={"team": "search"})
    )


def test_signing_in_and_out(visit: Open, stack: RunningStack) -> None:
    window = visit()
    page = window.sign_in(stack.key)
    expect(page.get_by_role("heading", name="Batches and jobs", exact=True)).to_be_visible()
    page.goto("/files")  # it is not polled: a poll just after the session's end is refused, which the browser notes
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_empty()
    page.goto("/")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_a_wrong_key_is_refused_in_words(visit: Open) -> None:
    window = visit()
    window.page.goto("/")
    window.page.get_by_label("API key").fill("by-1-2")
    window.page.get_by_role("button", name="Sign in").click()
    expect(window.page.get_by_role("alert")).to_contain_text("No key like this is in use")
    window.problems.clear()  # the browser logs the 401


def test_a_batch_is_watched_to_its_end_without_loading_the_page_again(visit: Open, stack: RunningStack) -> None:
    window = visit()
    batch = stack.submit_endless()
    page = window.sign_in(stack.key)
    row = page.locator(f"tr#{batch.id}")
    expect(row).to_contain_text("due in 23 h")
    page.evaluate("window.stays = true")
    row.get_by_role("checkbox").check()
    stack.wait(stack.client.batches.cancel(batch.id))
    expect(row).to_contain_text("cancelled")
    expect(row.get_by_role("checkbox")).to_be_checked()
    another = stack.submit([a_chat("a", "hello")])
    expect(page.locator(f"tr#{another.id}")).to_be_visible()  # nothing ran as it came
    assert page.evaluate("window.stays")


def test_a_batchs_own_page_follows_it_and_cancels_it(visit: Open, stack: RunningStack) -> None:
    batch = stack.submit([a_chat(f"id-{number}", "hello", model="raced") for number in range(2000)])  # minutes
    page = visit().sign_in(stack.key, f"/batches/{batch.id}")
    expect(page.locator(".how-far")).to_contain_text("of 2,000")  # validated after the page was loaded
    expect(page.locator("#rest article.pair").first).to_be_visible()  # and so were its answers
    page.locator("summary", has_text="Cancel").click()
    assert stack.client.batches.retrieve(batch.id).status == "in_progress"
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("section.batch header")).to_contain_text("cancelled")
    ended = stack.client.batches.retrieve(batch.id)
    assert ended.status == "cancelled"
    expect(page.get_by_role("heading", name="Errors")).to_be_visible()  # the page has reloaded itself
    expect(page.locator(".code")).to_contain_text("batch_cancelled")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_a_batch_is_paused_after_a_question_changed_and_resumed_also_without_scripts(
    visit: Open, stack: RunningStack
) -> None:
    batch = stack.submit_endless()
    window = visit(java_script_enabled=False, viewport={"width": 390, "height": 800})
    page = window.sign_in(stack.key, f"/batches/{batch.id}")
    page.locator("summary", has_text="Pause").click()
    expect(page.get_by_text("Pause this batch?")).to_be_visible()
    assert stack.client.batches.retrieve(batch.id).batchyard["paused_at"] is None
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("section.batch header")).to_contain_text("paused")
    expect(page.locator("section.batch").get_by_role("status")).to_contain_text("Paused by")
    expect(page.locator("section.batch")).to_contain_text("Its window keeps running")
    page.locator("summary", has_text="Change…").click()
    page.get_by_label("Name").fill("<nightly>")
    page.get_by_label("Completion window").fill("48h")
    page.get_by_label("Priority").select_option("high")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_role("heading", name="<nightly>")).to_be_visible()
    expect(page.locator(".steps")).to_contain_text("window 48h, priority high, name")
    page.goto("/?status=paused")
    expect(page.locator(f"tr#{batch.id}")).to_contain_text("paused")
    page.goto(f"/batches/{batch.id}")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".steps")).to_contain_text("resumed")
    expect(page.locator("summary", has_text="Pause")).to_be_visible()
    ours = stack.client.batches.retrieve(batch.id)
    assert (ours.batchyard["paused_at"], ours.batchyard["priority"]) == (None, "high")
    assert ours.completion_window == "48h"
    stack.client.batches.cancel(batch.id)


def test_a_page_that_somebody_looks_at_hears_that_its_batch_was_paused_elsewhere(
    visit: Open, stack: RunningStack
) -> None:
    batch = stack.submit_endless()
    window = visit()
    page = window.sign_in(stack.key, f"/batches/{batch.id}")
    expect(page.locator("summary", has_text="Pause")).to_be_visible()
    stack.client.post(f"/batches/{batch.id}/pause", cast_to=object)
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    window.check_accessibility()
    page.goto("/audit")
    expect(page.locator("tbody tr").first).to_contain_text("batch paused")
    window.check_accessibility()
    stack.client.batches.cancel(batch.id)


def test_requests_and_answers_stand_side_by_side_and_more_come_on_demand(
    visit: Open, stack: RunningStack, mixed: Any
) -> None:
    page = visit().sign_in(stack.key, f"/batches/{mixed.id}")
    pairs = page.locator("article.pair")
    expect(pairs).to_have_count(10)
    expect(pairs.nth(0)).to_contain_text("id-0")
    assert pairs.nth(0).locator("pre").all_inner_texts() == ["hello 0", "hello 0"]
    expect(page.locator("#chart svg.drawing").first).to_be_visible()
    legend = page.locator("#chart .legend li")
    expect(legend.filter(has_text="answered")).to_be_visible()
    expect(legend.filter(has_text="expected")).to_have_count(0)  # it has ended
    failed = next(line for line in stack.lines(mixed.error_file_id))
    expect(page.locator("section", has=page.get_by_role("heading", name="Errors"))).to_contain_text(failed["custom_id"])
    seen = pairs.locator("header code").all_inner_texts()
    for number in (25, 25):
        page.get_by_role("link", name="Next").click()
        expect(pairs).to_have_count(number)
        expect(pairs.first).to_contain_text(f"id-{len(seen)}")
        seen += pairs.locator("header code").all_inner_texts()
    assert seen == [f"id-{number}" for number in range(60)]
    expect(page.get_by_role("link", name="Next")).to_have_count(0)


# test_graded.py::test_a_group_of_a_batch_leads_to_its_wrong_answers shows them in a browser, too.
@pytest.mark.exhaustive
def test_scores_are_shown_for_each_task(visit: Open, stack: RunningStack, mixed: Any) -> None:
    summary = json.loads(stack.artifact(mixed, "score-summary.json"))
    page = visit().sign_in(stack.key, f"/batches/{mixed.id}")
    greet = page.get_by_role("listitem").filter(has_text="greet")
    expect(greet).to_contain_text("100 % 30 of 30")
    assert summary["tasks"]["greet"]["correct"] == 30
    expect(greet.locator("meter")).to_have_attribute("value", "1.0")


def test_a_download_has_the_bytes_of_the_api(visit: Open, stack: RunningStack, mixed: Any) -> None:
    page = visit().sign_in(stack.key, f"/batches/{mixed.id}")
    for artifact in mixed.batchyard["artifacts"]:
        with page.expect_download() as started:
            page.get_by_role("link", name=artifact["name"], exact=True).click()
        assert started.value.path().read_bytes() == stack.client.files.content(artifact["file_id"]).content
        expect(page.locator("tr", has_text=artifact["name"]).locator(".sha").last).to_have_text(artifact["sha256"])


def test_failed_requests_are_retried_and_a_batch_is_run_again(visit: Open, stack: RunningStack, mixed: Any) -> None:
    window = visit()
    page = window.sign_in(stack.key, f"/batches/{mixed.id}")
    page.get_by_role("button", name="Retry failed requests").click()
    page.wait_for_url(lambda url: mixed.id not in url)
    retried = stack.wait(stack.client.batches.retrieve(page.url.rpartition("/")[2]))
    assert retried.batchyard["retry_of"] == mixed.id
    assert retried.request_counts.total == mixed.request_counts.failed
    assert retried.metadata == {"team": "search"}
    window.leave(f"/batches/{mixed.id}")
    page.get_by_role("link", name="Run again").click()
    expect(page.get_by_label("Completion window")).to_have_value(mixed.completion_window)
    page.get_by_role("button", name="Submit batch").click()
    page.wait_for_url(lambda url: "/batches/" in url and mixed.id not in url and retried.id not in url)
    again = stack.wait(stack.client.batches.retrieve(page.url.rpartition("/")[2]))
    assert (again.input_file_id, again.request_counts.total) == (mixed.input_file_id, 60)
    assert [step["step"] for step in again.batchyard["post_process"]] == ["score"]


def test_one_batch_is_found_by_its_name_and_several_are_cancelled_after_a_question(
    visit: Open, stack: RunningStack
) -> None:
    names = ["Frühjahr <evals>", "summer evals"]
    batches = [stack.submit_endless(metadata={"name": name}) for name in names]
    page = visit().sign_in(stack.key)
    page.get_by_label("Name or id").fill("EVALS")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".work tbody tr")).to_have_count(2)
    expect(page).to_have_url(f"{stack.url}/?q=EVALS&sort=next")
    for batch in batches:
        page.locator(f"tr#{batch.id}").get_by_role("checkbox").check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("heading")).to_contain_text("Cancel 2 of 2 selected?")
    expect(page.get_by_role("listitem").filter(has_text="Frühjahr <evals>")).to_be_visible()
    page.get_by_role("button", name="Cancel 2").click()
    page.get_by_label("Name or id").fill("<evals>")
    page.keyboard.press("Enter")
    page.get_by_role("link", name=names[0]).click()
    expect(page.get_by_role("heading", name=names[0])).to_be_visible()
    for batch in batches:
        assert stack.wait(batch).status == "cancelled"


def test_a_form_that_is_sent_twice_makes_one_batch(stack: RunningStack, mixed: Any) -> None:
    with httpx.Client(base_url=stack.url, timeout=60) as client:
        client.post("/sign-in", data={"key": stack.key})
        page = client.get(f"/batches/{mixed.id}").text
        fields = {name: page.partition(f'name="{name}" value="')[2].partition('"')[0] for name in ("csrf", "once")}
        locations = {client.post(f"/batches/{mixed.id}/retry", data=fields).headers["location"] for _ in range(2)}
    assert len(locations) == 1


# So are requests found (test_rows.py), forms sent (starting/test_batch.py), and batches paused above.
@pytest.mark.exhaustive
def test_everything_works_without_scripts(visit: Open, stack: RunningStack, mixed: Any) -> None:
    page = visit(java_script_enabled=False).sign_in(stack.key, f"/batches/{mixed.id}")
    expect(page.locator("article.pair")).to_have_count(10)
    expect(page.locator("#chart svg.drawing").first).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.locator("article.pair").first).to_contain_text("id-10")
    page.goto("/docs")
    expect(page.get_by_role("link", name="OpenAPI document")).to_be_visible()
    batch = stack.submit_endless()
    page.goto(f"/batches/{batch.id}")
    page.locator("summary", has_text="Cancel").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("section.batch header")).to_contain_text("cancel")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


@pytest.fixture(scope="module")
def nasty(stack: RunningStack) -> Any:
    """A batch whose texts all contain markup."""
    requests = [
        a_chat(f"{number}{text}"[:500], f"{number} {text}", model=("echo", "failing")[number % 2])
        for number, text in enumerate(NASTY * 3)
    ]
    file = stack.client.files.create(
        file=('"><img src=x onerror=alert(1)>{{7*7}}\u202e.jsonl', "\n".join(map(json.dumps, requests)).encode()),
        purpose="batch",
    )
    batch = stack.client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={text[:60]: text[:500] for text in NASTY},
    )
    return stack.wait(batch)


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.exhaustive)])
def test_hostile_content_is_shown_as_text(visit: Open, stack: RunningStack, nasty: Any, width: int) -> None:
    page = visit(viewport={"width": width, "height": 800}).sign_in(stack.key, f"/batches/{nasty.id}")
    shown = page.locator("main").inner_text()
    for text in NASTY:
        assert text[:390] in shown
    assert "49" not in page.title()
    assert page.locator("main img, main script, main svg:not(.split, #chart svg)").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert {urljoin(stack.url, link) for link in links(page)} == set(links(page))
    page.goto("/")
    expect(page.locator(f"tr#{nasty.id}")).to_contain_text("<img src=x onerror=alert(1)>{{7*7}}")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def links(page: Page) -> list[str]:
    return page.locator("main a").evaluate_all("all => all.map(link => link.href)")


def test_a_rejected_input_shows_its_bad_lines(visit: Open, stack: RunningStack) -> None:
    lines = [json.dumps(a_chat("same", "hello")) for _ in range(5)] + ["{", '{"custom_id": "<b>x</b>"}']
    batch = stack.wait(stack.submit("\n".join(lines)))
    page = visit().sign_in(stack.key, f"/batches/{batch.id}")
    table = page.get_by_role("region", name="Errors")
    duplicates = table.get_by_role("row").filter(has_text="duplicate_custom_id")
    expect(duplicates.get_by_role("cell").first).to_have_text("4")
    expect(duplicates.get_by_role("listitem")).to_have_count(3)
    expect(duplicates.get_by_role("listitem").first).to_contain_text("line 2")
    expect(table).to_contain_text("line 6")


# test_overview.py, test_rows.py and test_models.py say the same of lists, requests and engines.
@pytest.mark.exhaustive
def test_two_projects_see_their_own_only(
    visit: Open, stack: RunningStack, other_project: openai.OpenAI, mixed: Any
) -> None:
    file = other_project.files.create(file=("theirs.jsonl", json.dumps(a_chat("a", "hello")).encode()), purpose="batch")
    theirs = stack_batch(other_project, file.id)
    ours, others = visit(), visit()
    our_page, their_page = ours.sign_in(stack.key), others.sign_in(other_project.api_key)
    expect(their_page.get_by_text("theirs.jsonl")).to_be_visible()
    assert mixed.id not in their_page.content()
    assert theirs.id not in our_page.content()
    expect(our_page.get_by_role("heading", name="Engines")).to_be_visible()
    expect(their_page.get_by_role("heading", name="Engines")).to_have_count(0)
    for path in ("", "/requests", "/requests/1", "/results.csv", "/input", "/artifacts/output.jsonl"):
        assert others.context.request.get(f"/batches/{mixed.id}{path}").status == 404
        assert others.context.request.get(f"/batches/batch_1{path}").status == 404


def stack_batch(client: openai.OpenAI, file_id: str) -> Any:
    return client.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.exhaustive)])
def test_pages_are_accessible(visit: Open, stack: RunningStack, mixed: Any, scheme: str) -> None:
    window = visit(color_scheme=scheme)
    window.page.goto("/sign-in")
    window.check_accessibility()
    running = stack.submit_endless()
    window.sign_in(stack.key)
    for path in ("/", f"/batches/{running.id}", f"/batches/{mixed.id}"):
        window.page.goto(path)
        window.check_accessibility()
    stack.client.batches.cancel(running.id)
    window.page.goto("/batches/batch_1")
    window.check_accessibility()
    window.problems.clear()  # the browser logs the 404
