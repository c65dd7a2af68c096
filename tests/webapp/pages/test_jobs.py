"""The pages of jobs and their items, without an engine: what they show, and to whom."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import expect
from sqlalchemy import delete

from store import files, keys
from store.jobs import lifecycle
from store.records import Job, JobChunk
from tasks.context import AppContext
from tests.support.jobs import create_job
from tests.support.planned import plan_batch
from tests.support.webapps import project_of
from tests.support.written_jobs import NUMBERS, TOTAL, Written
from tests.webapp.pages.conftest import Visit, csrf_of, signed_in
from webapp import create_app

Open = Callable[..., Visit]

NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}",
    "\u202egnp.exe",
    "</pre></bdi><svg onload=alert(1)>",
    "שלום 🙂",
]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is it so?"}]
METRICS = {
    "prompts": 40,
    "mean@2": 0.512345,
    "intervals": {"mean@2": [0.45, 0.57]},
    "consensus": {"mean": 0.25, "n": 12},
    "data_sources": {"gsm8k": {"prompts": 30, "mean@2": 0.5}, "aime": {"prompts": 10, "mean@2": 0.25}},
}
BAND = {"name": "pass", "y": [0.5, 1], "low": [0.4, 0.9], "high": [0.6, 1]}
VIEW = [
    {"kind": "bars", "title": "Wins", "labels": ["dev", "qa"], "values": [3, 1.5]},
    {"kind": "lines", "title": "pass@k", "x": [1, 2], "series": [BAND]},
    {"kind": "histogram", "title": "Right", "labels": ["0", "1"], "values": [7, 8]},
    {"kind": "matrix", "title": "Before", "rows": ["a"], "columns": ["b"], "values": [[0.5]]},
    {"kind": "table", "title": "Sources", "columns": ["name", "n"], "rows": [["gsm8k", 30]]},
    {"kind": "pie", "title": "Shares"},
]


TABS = ("?tab=report", "?tab=items", "?tab=files", "?tab=options")


@pytest.fixture
def job(context: AppContext, client: FlaskClient) -> Written:
    """A job in progress: two samples of one item, one right; another failed, and the others have no answer."""
    written = Written(context, project_of(context), name="first")
    lines = written.ask("argue", (0, 1, 0, 0), (0, 1, 1, 0), model="echo", messages=MESSAGES, temperature=0.5, seed=7)
    written.ask("argue", (2, 1, 0, 0), messages=MESSAGES)
    written.answer("argue", dict(zip(lines, ("It is so.", "I do not know."), strict=True)), segment=0)
    written.judge((0, 2, 0, "score", {"score": 1.0, "pred": "so"}), (0, 2, 1, "check", {"passed": False}))
    samples = [{"text": "It is so.", "score": 1.0, "pred": "so"}, {"text": "I do not know.", "score": 0.0}]
    written.end((0, "completed"), samples=samples, votes=2)
    written.end((1, "failed"), error={"code": "no_answer", "message": "None came."})
    written.update(completed=1, failed=1, counters={"samples": 2})
    return written


def end(job: Written, view: Any = VIEW) -> None:
    job.artifact("results.jsonl", b'{"custom_id": "id-0"}\n')
    job.artifact("view.json", json.dumps(view).encode())
    job.update(metrics=METRICS, report={"status": "completed"})
    job.finished("completed")


def text_of(page: str) -> str:
    """The words of a page, with one space between them."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_the_overview_counts_a_jobs_items_and_shows_its_stages_under_it(client: FlaskClient, job: Written) -> None:
    page = client.get("/").text
    card = page.partition(f'<tr id="{job.job.id}">')[2].partition("</tr>")[0]
    words = text_of(card)
    assert "first job" in words and "in progress" in words
    assert "2 of 6, 1 failed" in words
    assert "argue 2 of 3, judge 0 of 0" in words
    assert f'href="/batches/{job.batches["argue"]}"' in card
    assert f'id="{job.batches["argue"]}"' not in page


def test_an_ended_job_stands_among_ended_batches(client: FlaskClient, context: AppContext, job: Written) -> None:
    end(job)
    batch = plan_batch(context, project_of(context), ["one"])
    row = client.get("/").text.partition(f'<tr id="{job.job.id}">')[2].partition("</tr>")[0]
    assert f'href="/jobs/{job.job.id}"' in row and "first" in row and "completed" in row
    assert f'id="{batch.id}"' in client.get("/").text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"post_process": [{"step": "score", "summary": {"total": 8, "correct": 7, "accuracy": 0.875}}]},
            "87.5 % right",
        ),
        ({"metrics": {"pass@1": 0.25}}, "25.0 % right"),
        ({"post_process": [{"step": "score"}, {"step": "parquet"}], "metrics": {"pass@1": {"a": 1}}}, ""),
    ],
)
def test_a_scored_job_shows_its_share_of_right_answers_in_the_list_and_on_its_page(
    client: FlaskClient, job: Written, values: dict[str, Any], words: str
) -> None:
    end(job)
    job.update(**values)
    row = text_of(client.get("/").text.partition(f'<tr id="{job.job.id}">')[2].partition("</tr>")[0])
    page = text_of(client.get(f"/jobs/{job.job.id}").text.partition('<section class="card batch"')[2])
    for text in (row, page):
        assert words in text and ("% right" in text) is bool(words)


def test_a_jobs_page_counts_items_and_follows_each_stage(client: FlaskClient, job: Written) -> None:
    words = text_of(client.get(f"/jobs/{job.job.id}").text)
    assert "2 of 6 items (33.3 %), 1 failed" in words
    assert "argue Running 3 2 66.7 % 0 10 0.49 s 0.49 s 0.49 s n = 2" in words
    assert "samples 2" in words
    options = text_of(client.get(f"/jobs/{job.job.id}?tab=options").text)
    assert "Completion window 24h" in options and "n 3" in options


def test_the_live_part_alone_is_fetched_until_the_job_ends(client: FlaskClient, job: Written) -> None:
    path, headers = f"/jobs/{job.job.id}", {"HX-Request": "true"}
    part = client.get(path, headers=headers)
    assert "<html" not in part.text and "2 of 6 items" in part.text
    end(job)
    assert client.get(path, headers=headers).headers["HX-Refresh"] == "true"


def test_an_ended_job_offers_its_files_and_shows_its_metrics(client: FlaskClient, job: Written) -> None:
    end(job)
    page = client.get(f"/jobs/{job.job.id}").text
    words = text_of(page)
    assert "Download results.jsonl" in words
    assert client.get(f"/jobs/{job.job.id}/artifacts/results.jsonl").data == b'{"custom_id": "id-0"}\n'
    assert client.get(f"/jobs/{job.job.id}/artifacts/other").status_code == 404
    assert "prompts 40 mean@2 0.5123 0.45 to 0.57 consensus 0.25 n = 12" in words
    assert "data sources name prompts mean@2 gsm8k 30 0.5 aime 10 0.25" in words
    assert "/cancel" not in page


def test_runs_of_one_name_are_shown_with_their_scores_and_what_changed(
    client: FlaskClient, context: AppContext
) -> None:
    runs = []
    for model, mean in (("small", 0.5), ("large", 0.75)):
        runs.append(Written(context, project_of(context), name="nightly", options={"model": model}))
        runs[-1].update(metrics={"questions": 4, "exact": {"mean": mean, "n": 4, "intervals": {"mean": [mean, 1]}}})
        runs[-1].finished("completed")
    page = client.get(f"/jobs/{runs[1].job.id}?tab=report").text
    trend = text_of(page.partition('<div class="bars runs"')[2].partition("</section>")[0])
    assert re.search(r"UTC 0.75 0.75 0.75 to 1 model: small → large compare \S+ \S+ UTC 0.5 0.5 0.5 to 1", trend), trend
    assert f'href="/compare?a={runs[0].job.id}&amp;b={runs[1].job.id}"' in page
    assert "Exact 0.75 0.75 to 1" in text_of(page)


def test_a_scored_item_shows_question_answer_truth_and_score_and_leads_to_its_request(
    client: FlaskClient, context: AppContext
) -> None:
    job = Written(
        context,
        project_of(context),
        columns=lambda number: {"prompt": f"Why {number}?", "answer": f"right {number}"},
        options={"model": "echo", "ground_truth": "answer"},
    )
    [line] = job.ask("argue", (0, 1, 0, 0), messages=MESSAGES)
    job.answer("argue", {line: "nonsense"}, segment=0)
    job.end((0, "completed"), samples=[{"text": "nonsense", "score": 0.0}], text="nonsense")
    metrics = {"exact": {"mean": 0.0, "n": 1}}
    job.update(completed=1, counters={"samples": 1, "wrong": 1}, metrics=metrics)
    path = f"/jobs/{job.job.id}"
    assert f'href="{path}/items?state=wrong#tab">1 wrong<' in client.get(path).text
    listed = text_of(client.get(f"{path}/items?state=wrong").text)
    assert f"Question Answer Expected Scores {NUMBERS[0]} id-{NUMBERS[0]} Why {NUMBERS[0]}? nonsense right" in listed
    page = client.get(f"{path}/items/{NUMBERS[0]}").text
    assert f"Why {NUMBERS[0]}? nonsense request right {NUMBERS[0]} score 0" in text_of(page)
    assert f'href="/batches/{job.batches["argue"]}/requests/{line}"' in page


def test_a_view_is_drawn_without_scripts_and_what_cannot_be_says_why(client: FlaskClient, job: Written) -> None:
    end(job)
    page = client.get(f"/jobs/{job.job.id}").text
    drawings = re.findall(r'<svg class="drawing".*?</svg>', page, re.DOTALL)
    assert [re.search('aria-label="([^"]*)"', drawing)[1] for drawing in drawings] == [  # type: ignore[index]
        "Wins",
        "pass@k",
        "Right",
        "Before",
    ]
    assert [len(re.findall(r'<rect class="box"', drawing)) for drawing in drawings] == [2, 0, 2, 1]
    assert drawings[1].count('class="band"') == 1
    assert "style=" not in page and "<script>" not in page
    assert "Shares cannot be drawn" in text_of(page)
    assert "name n gsm8k 30" in text_of(page)


@pytest.mark.parametrize("view", [{"kind": "bars"}, None, "x", [[]]])
def test_an_unusable_view_breaks_no_page(client: FlaskClient, job: Written, view: Any) -> None:
    end(job, view)
    assert client.get(f"/jobs/{job.job.id}").status_code == 200


def test_a_failed_report_is_said_with_its_reason(client: FlaskClient, job: Written) -> None:
    job.update(report={"status": "failed", "error": "ValueError: no numbers"})
    job.finished("completed")
    words = text_of(client.get(f"/jobs/{job.job.id}").text)
    assert "the recipe's report failed: ValueError: no numbers" in words


def test_what_a_report_warns_of_is_said_when_the_job_has_ended(client: FlaskClient, job: Written) -> None:
    warnings = [["reviewer_agrees", "The reviewer has failed 0 of 20 known-wrong answers."]]
    job.update(report={"status": "completed", "warnings": warnings})
    job.finished("completed")
    assert warnings[0][1] in text_of(client.get(f"/jobs/{job.job.id}").text)


def test_an_invalid_job_shows_its_bad_rows(client: FlaskClient, context: AppContext) -> None:
    errors = [{"code": "missing_prompt", "line": line, "message": "No prompt.", "param": None} for line in range(1, 61)]
    with context.database.write() as session:
        job = create_job(session, project_of(context))
        lifecycle.reject(session, job.id, errors)
    words = text_of(client.get(f"/jobs/{job.id}").text)
    assert "missing_prompt 1 No prompt." in words and "and 10 more." in words
    assert "debate: rows.jsonl" in words


def test_cancelling_asks_once_more_and_needs_the_sessions_token(client: FlaskClient, job: Written) -> None:
    path = f"/jobs/{job.job.id}"
    assert "Cancel this job?" in client.get(path).text
    assert client.post(f"{path}/cancel").status_code == 403
    answer = client.post(f"{path}/cancel", data={"csrf": csrf_of(client)})
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    page = client.get(path).text
    assert "cancelling" in page and "Cancel this job?" not in page


def test_items_that_did_not_complete_are_retried_after_one_more_question_and_once(
    client: FlaskClient, context: AppContext
) -> None:
    with context.database.write() as session:
        fields = {"filename": "rows.jsonl", "purpose": "user_data", "size": 2, "sha256": context.artifacts.put(b"{}")}
        file = files.create(session, project_of(context), **fields, expires_after=None)
    job = Written(
        context, project_of(context), recipe="panel", options={"model": "echo"}, input_file_id=file.id, name="first"
    )
    path = f"/jobs/{job.job.id}"
    assert "/retry" not in client.get(path).text
    job.end((0, "failed"), (1, "stuck"), *((position, "completed") for position in range(2, TOTAL)))
    job.finished("completed")
    assert "/retry" not in client.get(path).text
    job.update(completed=4, failed=1, stuck=1)
    page = client.get(path).text
    words = text_of(page)
    assert "Retry 2 items" in words and "Create a new job from the items that did not complete?" in words
    once = re.search(r'name="once" value="([0-9a-f]+)"', page)
    assert once is not None
    assert client.post(f"{path}/retry").status_code == 403
    answers = [client.post(f"{path}/retry", data={"csrf": csrf_of(client), "once": once[1]}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [303, 303]
    assert answers[0].headers["location"] == answers[1].headers["location"] != path
    made = client.get(answers[0].headers["location"]).text
    assert f'href="{path}"' in made and "validating" in made
    assert f'href="{answers[0].headers["location"]}"' in client.get(path).text

    ids = [job.job.id, answers[0].headers["location"].rpartition("/")[2]]
    question = text_of(client.get("/selected", query_string={"action": "retry", "id": ids}).text)
    assert "Retry 1 of 2 selected?" in question and "has not ended" in question
    form = {"csrf": csrf_of(client), "action": "retry", "once": "1", "id": job.job.id}
    assert [client.post("/selected", data=form).status_code for _ in range(2)] == [303, 303]
    assert len(re.findall(r"retried by <a[^>]*>[^<]*</a>, <a", client.get(path).text)) == 1


def test_items_are_listed_by_state_and_id_page_by_page(
    client: FlaskClient, job: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.web.pages.job.ROWS", 2)

    def listed(page: str) -> list[str]:
        return re.findall(rf'/jobs/{job.job.id}/items/\d+"><bdi>([^<]*)<', page)

    path = f"/jobs/{job.job.id}/items"
    pages = [client.get(path).text]
    while following := re.search(r'<a class="button" href="([^"]*)"', pages[-1]):
        pages.append(client.get(html.unescape(following[1]), headers={"HX-Request": "true"}).text)
    assert [listed(page) for page in pages] == [[f"id-{a}", f"id-{a + 1}"] for a in (0, 2, 4)]
    assert "<html" not in pages[1]
    failed = client.get(f"{path}?state=failed&custom_id=").text
    assert listed(failed) == [f"id-{NUMBERS[1]}"] and "no_answer" in failed
    assert listed(client.get(f"{path}?custom_id=id-5").text) == ["id-5"]
    assert "No matching items." in client.get(f"{path}?state=stuck").text
    assert client.get(f"{path}?state=done").status_code == 400


def test_items_that_are_sometimes_right_stand_first(client: FlaskClient, job: Written) -> None:
    page = client.get(f"/jobs/{job.job.id}").text
    items = page.partition('<div id="items">')[2].partition("</section>")[0]
    assert f"{NUMBERS[0]} id-{NUMBERS[0]} Why {NUMBERS[0]}?" in text_of(items)
    assert f"id-{NUMBERS[1]}" not in items
    assert '<option value="sometimes_right" selected>' in page


def test_an_items_page_is_its_conversation_with_samples_side_by_side(client: FlaskClient, job: Written) -> None:
    page = client.get(f"/jobs/{job.job.id}/items/{NUMBERS[0]}").text
    words = text_of(page)
    assert "id-3" in words and "row 3 of job first" in words
    assert "Row prompt Why 3?" in words
    assert "Turn 1: argue Batch of argue , model echo ," in words and "temperature 0.5" in words
    assert words.count("Be brief.") == 1  # once for both samples
    assert "Sample 1 score 1 pred so It is so. 2 tokens out, 3 tokens in, finish reason stop, seed 7, 0.5 s" in words
    assert "Sample 2 score 0 I do not know." in words
    assert "Turn 2: score, check Score 1 score 1 pred so Check 2 passed no" in words
    assert "votes 2" in words
    assert [re.search(rf'rel="{rel}" href="[^"]*/items/(\d)"', page)[1] for rel in ("prev", "next")] == ["2", "4"]  # type: ignore[index]


def test_a_failed_item_says_why_and_a_live_one_what_it_waits_for(client: FlaskClient, job: Written) -> None:
    failed = text_of(client.get(f"/jobs/{job.job.id}/items/{NUMBERS[1]}").text)
    assert "no_answer : None came." in failed and "No requests yet." in failed
    live = text_of(client.get(f"/jobs/{job.job.id}/items/{NUMBERS[2]}").text)
    assert "waiting in stage argue" in live and "no answer yet" in live
    assert client.get(f"/jobs/{job.job.id}/items/{TOTAL}").status_code == 404


def test_many_samples_are_shown_on_demand_and_long_texts_whole(client: FlaskClient, context: AppContext) -> None:
    written = Written(context, project_of(context))
    lines = written.ask("argue", *((0, 1, sample, 0) for sample in range(40)), messages=MESSAGES)
    written.answer("argue", {line: f"{line} " + "word " * 3000 for line in lines})
    path = f"/jobs/{written.job.id}/items/{NUMBERS[0]}"
    page = client.get(path).text
    assert page.count('<article class="said"') == 32 and "Show all 40" in page
    assert "word " * 3000 in page
    assert client.get(f"{path}?all=1").text.count('<article class="said"') == 40


def test_a_stages_page_names_its_job(client: FlaskClient, job: Written) -> None:
    page = client.get(f"/batches/{job.batches['argue']}").text
    assert f'stage <bdi>argue</bdi> of job <a href="/jobs/{job.job.id}">' in page


def test_long_after_its_end_a_job_refers_to_its_files(client: FlaskClient, context: AppContext, job: Written) -> None:
    end(job)
    with context.database.write() as session:
        session.execute(delete(JobChunk))
    for path in ("?tab=items", "/items", "/items/0"):
        answer = client.get(f"/jobs/{job.job.id}{path}")
        assert answer.status_code == 200
        assert "its results are in its artifacts now" in answer.text


def test_another_projects_job_is_not_there(client: FlaskClient, context: AppContext, job: Written) -> None:
    end(job)
    with context.database.write() as session:
        key = keys.create(session, "other").key
    stranger = signed_in(create_app(context).test_client(), key)
    for path in ("", "/items", "/items/0", "/input", "/artifacts/results.jsonl"):
        assert stranger.get(f"/jobs/{job.job.id}{path}").status_code == 404, path
    for action in ("cancel", "retry"):
        assert stranger.post(f"/jobs/{job.job.id}/{action}", data={"csrf": csrf_of(stranger)}).status_code == 404
    assert job.job.id not in stranger.get("/").text


@pytest.fixture
def nasty(context: AppContext, client: FlaskClient) -> Job:
    """An ended job whose texts are all markup, or written from right to left."""
    nasty = "\n".join(NASTY) + "x" * 3000
    written = Written(
        context,
        project_of(context),
        columns=lambda number: {"prompt": nasty, nasty: nasty},
        name=NASTY[0] + NASTY[3],
        options={"system": nasty, nasty: [nasty]},
        metadata={nasty: nasty},
    )
    lines = written.ask("argue", (0, 1, 0, 0), messages=[{"role": nasty, "content": nasty}], stop=nasty)
    written.answer("argue", dict.fromkeys(lines, nasty))
    written.judge((0, 2, 0, nasty, {nasty: nasty}))
    written.end((0, "completed"), samples=[{"score": nasty, "pred": nasty}], **{nasty: nasty})
    written.end((1, "failed"), error={"code": nasty, "message": nasty})
    written.update(metrics={nasty: {nasty: {nasty: 1}, "b": {nasty: nasty}}}, counters={nasty: 1})
    view = [
        {"kind": "bars", "title": nasty, "labels": [nasty], "values": [1]},
        {"kind": "lines", "title": nasty, "x": [1, 2], "series": [{"name": nasty, "y": [1, 2]}]},
        {"kind": "matrix", "title": nasty, "rows": [nasty], "columns": [nasty], "values": [[1]]},
        {"kind": "table", "title": nasty, "columns": [nasty], "rows": [[nasty]]},
        {"kind": nasty},
    ]
    written.artifact("view.json", json.dumps(view).encode())
    written.finished("completed")
    written.update(completed=TOTAL - 1, failed=1)
    return written.job


@pytest.mark.parametrize(
    ("scheme", "width"), [("dark", 390), pytest.param("light", 1280, marks=pytest.mark.exhaustive)]
)
def test_hostile_texts_are_texts_and_every_page_fits_and_is_accessible(
    visit_served: Open, context: AppContext, job: Written, nasty: Job, scheme: Any, width: int
) -> None:
    with context.database.write() as session:
        key = keys.create(session, "default", label="the nightly run of the evaluations").key
    job.end((4, "waiting_for_verdict"), gate="house", draft="\n".join(NASTY))
    job.end((5, "stuck"), error={"code": "tie", "message": NASTY[0]})
    job.update(waiting_for_verdict=1, stuck=1)
    window = visit_served(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = window.sign_in(key)
    needing = (f"/jobs/{job.job.id}/items/{NUMBERS[position]}" for position in (4, 5))
    tails = ("", *TABS, "/items", "/items/3")
    of_job = tails if width == 1280 else ("", "/items/3")  # those between are of the same templates
    shown = (f"/jobs/{one.id}{tail}" for one, all_ in ((job.job, of_job), (nasty, tails)) for tail in all_)
    for path in ("/", *shown, *needing):
        page.goto(path)
        window.check_accessibility()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.locator("main img, main script").count() == 0
        assert page.locator("main svg:not(.drawing, .legend svg, .split)").count() == 0
    if width == 1280:
        page.goto("/?q=a&status=in_progress&sort=failures")
        filter_ = page.locator("#filter").bounding_box()
        assert filter_ is not None and filter_["height"] < 50, "it is one row"
    page.goto(f"/jobs/{nasty.id}/items/3")
    assert all(text in page.locator("main").inner_text() for text in NASTY)
    page.goto(f"/jobs/{job.job.id}?tab=items")
    page.get_by_label("State").select_option("failed")
    expect(page.locator("#items")).to_contain_text("no_answer")  # without loading the page again
    assert page.url.endswith("?tab=items")


def test_show_more_moves_the_focus_to_what_it_shows(
    visit_served: Open, context: AppContext, job: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.web.pages.job.ROWS", 2)
    with context.database.write() as session:
        key = keys.create(session, "default").key
    window = visit_served()
    page = window.sign_in(key, f"/jobs/{job.job.id}/items")
    page.get_by_role("link", name="Show more").focus()
    page.keyboard.press("Enter")
    tables = page.get_by_role("region", name="Items")
    expect(tables).to_have_count(2)
    expect(tables.nth(1)).to_be_focused()


def test_items_that_need_a_person_are_linked_and_have_forms(client: FlaskClient, job: Written) -> None:
    job.end((2, "waiting_for_verdict"), gate="house", draft=NASTY[0])
    job.end((3, "stuck"), error={"code": "tie", "message": "Two against two."})
    job.update(waiting_for_verdict=1, stuck=1)
    path, token = f"/jobs/{job.job.id}", csrf_of(client)
    words = text_of(client.get(path).text)
    columns = "Row custom_id State Turns Question Answer Scores"
    waiting, stuck = (f"{NUMBERS[position]} id-{NUMBERS[position]}" for position in (2, 3))
    assert f"Waiting for a verdict {columns} {waiting} waiting for verdict house 2" in words
    assert f"Stuck {columns} {stuck} stuck tie 2" in words
    page = client.get(f"{path}/items/{NUMBERS[2]}").text
    assert NASTY[0] not in page and html.escape(NASTY[0], quote=False) in page
    form = {"csrf": token, "gate": "house", "message": "Shorter.", "category": "", "by": "Ann", "reply": "fail"}
    answer = client.post(f"{path}/items/{NUMBERS[2]}", data=form)
    assert (answer.status_code, answer.location) == (303, f"{path}/items/{NUMBERS[2]}")
    (said,) = job.item(2).replies
    assert said.body == {"gate": "house", "passed": False, "category": None, "message": "Shorter.", "by": "Ann"}
    assert client.post(f"{path}/items/{NUMBERS[2]}", data=form).status_code == 409
    mend = {"csrf": token, "text": "Mine.", "by": "", "reply": "resolve"}
    assert client.post(f"{path}/items/{NUMBERS[3]}", data=mend | {"text": " "}).status_code == 400
    assert client.post(f"{path}/items/{NUMBERS[3]}", data=mend).status_code == 303
    assert "Completed by hand" in text_of(client.get(f"{path}/items/{NUMBERS[3]}").text)
    assert client.post(f"{path}/items/{NUMBERS[1]}", data={"csrf": token, "reply": "requeue"}).status_code == 303
    assert [reply.kind for reply in job.item(1).replies] == ["requeue"]
