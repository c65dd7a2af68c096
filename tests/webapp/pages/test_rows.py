"""People find a request of a batch, read all of its answer, and take the answers away."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest
from flask.testing import FlaskClient
from playwright.sync_api import expect

from store import files, keys
from store.records import Batch
from tasks.context import AppContext
from tasks.intake import validation
from tests.support.batches import create_batch
from tests.support.planned import MODEL, answers, append, end_batch, finish_segment, plan_batch, started
from tests.support.stacks import a_chat
from tests.support.webapps import project_of
from tests.webapp.pages.conftest import Visit, signed_in
from webapp import create_app

Open = Callable[..., Visit]

MARKDOWN = """# Summary

* one, **bold** and `code`
* <img src=x onerror=alert(1)> <script>alert(2)</script>

![tracker](http://tracker.example/pixel.png) [bad](javascript:alert(3)) [good](https://good.example/)

```python
print("<b>not bold</b>")
```

| left | right |
|:-----|------:|
| a | <svg onload=alert(4)> |
"""
NASTY = ["</pre></bdi><svg onload=alert(1)>", '"><img src=x onerror=alert(1)>', "{{7*7}}", "\u202egnp.exe", "=1+1"]


@pytest.fixture
def large(context: AppContext, client: FlaskClient) -> Batch:
    """An ended batch of 3,000 requests, of which every sixth failed, in turns with `timeout` and `too_long`."""
    batch = plan_batch(
        context, project_of(context), [f"question {line}" for line in range(1, 3001)], segment_requests=3000
    )
    failed = {line: ("timeout", "too_long")[line // 6 % 2] for line in range(6, 3001, 6)}
    texts = {line: f"{'a long answer, ' * 60}which ends with {line}" for line in range(1, 3001)}
    finish_segment(context, batch, answers(range(1, 3001), failed=failed, texts=texts))
    return end_batch(context, batch)


@pytest.fixture
def small(context: AppContext, client: FlaskClient) -> Batch:
    """An ended batch of six requests with scores: Markdown, JSON and hostile answers, and two that failed."""
    batch = plan_batch(
        context,
        project_of(context),
        [f"{text} {line}" for line, text in enumerate([*NASTY, "six"], 1)],
        post_process=["score"],
        metadata={"expected": "=1+1"},
    )
    texts = {1: MARKDOWN, 2: json.dumps({"found": NASTY}), 3: "\n\n".join(NASTY), 4: "=1+1"}
    finish_segment(context, batch, answers(range(1, 7), failed={5: "=cmd|' /C calc'!A0", 6: "timeout"}, texts=texts))
    return end_batch(context, batch)


@pytest.fixture
def key(context: AppContext) -> str:
    with context.database.write() as session:
        return keys.create(session, "default").key


def test_the_third_timeout_of_3000_requests_is_two_clicks_away(visit_served: Open, large: Batch, key: str) -> None:
    window = visit_served()
    page = window.sign_in(key)
    page.locator(f"#{large.id} a").first.click()
    page.get_by_role("region", name="Errors").get_by_role("link", name="timeout").click()
    expect(page.get_by_role("status").last).to_contain_text("250 requests of 3,000")
    third = page.locator("article.pair").nth(2).get_by_role("link")
    expect(third).to_contain_text("line 36")
    third.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("r36")
    expect(page.get_by_label("Outcome")).to_contain_text("timeout: line 36 failed")
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("r48")
    page.get_by_role("link", name="All matching requests").click()
    expect(page.locator("article.pair")).to_have_count(25)


def test_requests_are_found_without_scripts(visit_served: Open, large: Batch, key: str) -> None:
    window = visit_served(java_script_enabled=False)
    page = window.sign_in(key, f"/batches/{large.id}")
    form = page.get_by_role("search", name="Requests")
    form.get_by_label("State").select_option("failed")
    form.get_by_role("button", name="Find").click()
    form.get_by_label("Error").select_option("too_long")
    form.get_by_role("button", name="Find").click()
    page.get_by_role("link", name="Next").click()
    expect(page.locator("article.pair").first).to_contain_text("line 306")
    assert "state=failed" in page.url and "code=too_long" in page.url and "after=294" in page.url
    page.get_by_role("link", name="Previous").click()
    expect(page.locator("article.pair").first).to_contain_text("line 6 ")
    page.goto(f"/batches/{large.id}/requests")
    form.get_by_label("Text").fill("ENDS WITH 2999")
    form.get_by_role("button", name="Find").click()
    page.get_by_role("link", name="line 2,999").click()
    answer = page.get_by_role("group", name="Answer as text")
    expect(answer).to_contain_text("which ends with 2999")
    assert len(answer.inner_text()) > 900
    page.go_back()
    page.get_by_role("textbox", name="Line").fill("2998")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("r2998")


@pytest.mark.parametrize(
    ("scheme", "width"), [("dark", 390), pytest.param("light", 1280, marks=pytest.mark.exhaustive)]
)
def test_hostile_answers_are_text_on_pages_that_fit_and_are_accessible(
    visit_served: Open, served: str, small: Batch, key: str, scheme: Any, width: int
) -> None:
    window = visit_served(viewport={"width": width, "height": 800}, color_scheme=scheme)
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = window.sign_in(key)
    for tail in ("", "/requests", "/requests/3", "/requests/5", "/requests/1"):
        page.goto(f"/batches/{small.id}{tail}")
        window.check_accessibility()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tail
        assert page.locator("main img, main script, main svg:not(.split, #chart svg), main b").count() == 0
    shown = page.locator(".rendered")
    expect(shown.get_by_role("heading", name="Summary")).to_be_visible()
    expect(shown.locator("pre")).to_have_text('print("<b>not bold</b>")')
    expect(shown).to_contain_text("<script>alert(2)</script>")
    assert shown.locator("a").evaluate_all("all => all.map(link => [link.href, link.rel])") == [
        ["http://tracker.example/pixel.png", "noopener noreferrer nofollow"],  # a link, which nobody has loaded
        ["https://good.example/", "noopener noreferrer nofollow"],
    ]
    page.get_by_label("Raw text").check()
    expect(shown).to_be_hidden()
    assert page.locator("#answer-1").inner_text() == MARKDOWN
    page.evaluate("window.setTimeout = () => 0")  # a button that says "Copied" goes on saying so
    page.locator(".choice h2").get_by_role("button", name="Copy").click()
    expect(page.locator(".choice h2").get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == MARKDOWN
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_have_count(2)
    assert page.evaluate("navigator.clipboard.readText()") == f"{served}/batches/{small.id}/requests/1"


def test_hostile_texts_are_no_elements_of_a_page(client: FlaskClient, small: Batch) -> None:
    for tail in ("", "/requests", "/requests/1", "/requests/2", "/requests/3"):
        page = client.get(f"/batches/{small.id}{tail}").text
        assert "&lt;svg onload" in page or "&lt;img src=x" in page, tail
        assert "<svg onload" not in page and "<img src=x" not in page, tail


def test_a_request_says_how_it_went(client: FlaskClient, small: Batch) -> None:
    page = client.get(f"/batches/{small.id}/requests/4").text
    assert "=1+1" in page and "Scores" in page and "<dt><bdi>correct</bdi></dt><dd><bdi>yes</bdi></dd>" in page
    assert "0.5 s" in page  # in the engine
    raw = client.get(f"/batches/{small.id}/requests/4/answer.json")
    assert (raw.mimetype, raw.get_json()["custom_id"]) == ("application/json", "r4")
    assert client.get(f"/batches/{small.id}/requests/4/request.json").get_json()["custom_id"] == "r4"
    for tail in ("/requests/7", "/requests/4/other.json", "/requests?after=70", "/results.xlsx"):
        assert client.get(f"/batches/{small.id}{tail}").status_code == 404, tail
    assert client.get(f"/batches/{small.id}/requests?state=lost").status_code == 400


def test_a_running_batch_shows_the_answers_there_are(context: AppContext, client: FlaskClient) -> None:
    batch = plan_batch(context, project_of(context), ["one", "two", "three"])
    append(context, started(context.database, batch), answers([3, 1], failed={1: "timeout"}))
    page = client.get(f"/batches/{batch.id}").text
    assert [page.index(f"line {line} <code>") for line in (3, 1, 2)] == sorted(
        page.index(f"line {line} <code>") for line in (3, 1, 2)
    )
    assert "to r3" in client.get(f"/batches/{batch.id}/requests/3").text
    assert "Not answered yet." in client.get(f"/batches/{batch.id}/requests/2").text
    assert "No matching requests." in client.get(f"/batches/{batch.id}/requests?state=expired").text
    so_far = client.get(f"/batches/{batch.id}/results.jsonl").text.splitlines()
    assert [json.loads(line)["custom_id"] for line in so_far] == ["r3", "r1"]


def test_a_line_that_was_skipped_is_shown_as_it_is(context: AppContext, client: FlaskClient) -> None:
    good = json.dumps(a_chat("good", "hello", model=MODEL)).encode()
    content = good + b'\n{nope <b>}\n{"custom_id": "nan", "body": NaN}\n'
    with context.database.write() as session:
        sha256 = context.artifacts.put(content)
        source = files.create(
            session,
            project_of(context),
            filename="in.jsonl",
            purpose="batch",
            size=len(content),
            sha256=sha256,
            expires_after=None,
        )
        batch = create_batch(session, source, on_invalid="skip")
    assert validation.run(context, batch.id, "here/1/task")
    for ended in (False, True):
        if ended:
            finish_segment(context, batch, answers([1], custom_ids={1: "good"}))
            end_batch(context, batch)
        page = client.get(f"/batches/{batch.id}/requests/2").text
        assert "{nope &lt;b&gt;}" in page and "invalid_json_line" in page
        assert "NaN" in client.get(f"/batches/{batch.id}/requests/3?text=nan").text
        assert "nan" in client.get(f"/batches/{batch.id}/requests?text=nan").text


def test_downloads_have_every_answer_and_no_formula(client: FlaskClient, small: Batch) -> None:
    answer = client.get(f"/batches/{small.id}/results.csv")
    assert answer.headers["Content-Disposition"] == f"attachment; filename={small.id}.csv"
    rows = list(csv.DictReader(io.StringIO(answer.data.decode("utf-8-sig"))))
    assert [row["custom_id"] for row in rows] == [f"r{line}" for line in range(1, 7)]
    assert [rows[0]["text"], rows[3]["text"]] == [MARKDOWN, "'=1+1"]
    assert [row["error_code"] for row in rows] == ["", "", "", "", "'=cmd|' /C calc'!A0", "timeout"]
    assert float(rows[0]["seconds"]) == 0.5
    failed = client.get(f"/batches/{small.id}/results.csv?code=timeout").data.decode("utf-8-sig")
    assert [row["custom_id"] for row in csv.DictReader(io.StringIO(failed))] == ["r6"]
    table = pq.read_table(io.BytesIO(client.get(f"/batches/{small.id}/results.parquet").data))
    assert table["text"].to_pylist()[3:] == ["=1+1", None, None]
    page = client.get(f"/batches/{small.id}").text
    assert page.index('aria-label="Downloads"') < page.index('id="live"')


def test_answers_are_merged_with_those_of_the_retries(
    context: AppContext, client: FlaskClient, small: Batch, retried: Callable[[Batch, dict[int, str]], Batch]
) -> None:
    page = client.get(f"/batches/{small.id}").text
    assert "Merged with" not in page
    first = retried(small, {1: "timeout"})  # r5 fails once more, r6 is answered
    retried(first, {})  # a retry of the retry answers r5
    assert "Merged with" in client.get(f"/batches/{small.id}").text
    lines = [json.loads(line) for line in client.get(f"/batches/{small.id}/results.jsonl?merged=1").text.splitlines()]
    assert [line["custom_id"] for line in lines] == [f"r{line}" for line in range(1, 7)]
    assert [line["response"]["status_code"] for line in lines] == [200] * 6
    rows = list(
        csv.DictReader(io.StringIO(client.get(f"/batches/{small.id}/results.csv?merged=1").data.decode("utf-8-sig")))
    )
    assert [(row["line"], row["error_code"]) for row in rows] == [(str(line), "") for line in range(1, 7)]


@pytest.fixture
def retried(context: AppContext) -> Callable[[Batch, dict[int, str]], Batch]:
    """Makes an ended batch that retries the failed requests of a batch; some of its lines fail again."""

    def make(batch: Batch, failed: dict[int, str]) -> Batch:
        ids = {1: "r5", 2: "r6"} if not batch.retry_of else {1: "r5"}
        retry = plan_batch(context, batch.project_id, ["again"] * len(ids), retry_of=batch.id, custom_ids=ids)
        finish_segment(context, retry, answers(ids, failed=failed, custom_ids=ids))
        return end_batch(context, retry)

    return make


def test_another_projects_requests_are_not_there(context: AppContext, client: FlaskClient, small: Batch) -> None:
    with context.database.write() as session:
        key = keys.create(session, "other").key
    stranger = signed_in(create_app(context).test_client(), key)
    files = ("/input", "/artifacts/output.jsonl", "/results.csv", "/results.jsonl?merged=1")
    for tail in ("", "/requests", "/requests/1", "/requests/1/answer.json", *files):
        assert client.get(f"/batches/{small.id}{tail}").status_code == 200, tail
        assert stranger.get(f"/batches/{small.id}{tail}").status_code == 404, tail
