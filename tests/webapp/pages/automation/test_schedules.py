"""/schedules: recurring batches are created, watched and stopped on their pages."""

from __future__ import annotations

import json
from collections.abc import Callable

import openai
from flask.testing import FlaskClient
from playwright.sync_api import expect
from sqlalchemy import select, update

from store import keys
from store.records import Batch, Schedule
from tasks.context import AppContext
from tests.support.stacks import RunningStack, a_chat
from tests.webapp.pages.conftest import Visit, csrf_of, signed_in
from webapp import create_app

Open = Callable[..., Visit]

TEMPLATE = json.dumps(a_chat("{{date}}", "<img src=x onerror=alert(1)>"))
FORM = {
    "name": "nightly",
    "cron": "30 6 29 2 *",
    "timezone": "Asia/Kathmandu",
    "template": TEMPLATE,
    "endpoint": "/v1/chat/completions",
    "completion_window": "2h",
    "metadata": "day={{date}}",
    "overlap": "allow",
    "catch_up": "none",
    "step.parquet": "1",
}


def only_schedule(context: AppContext) -> Schedule:
    with context.database.read() as session:
        return session.query(Schedule).one()


def create_schedule(client: FlaskClient, context: AppContext, **fields: str) -> Schedule:
    answer = client.post("/schedules", data={"csrf": csrf_of(client), **FORM, **fields})
    schedule = only_schedule(context)
    assert (answer.status_code, answer.location) == (303, f"/schedules/{schedule.id}")
    return schedule


def test_the_next_five_times_are_shown_without_scripts_too(client: FlaskClient) -> None:
    fields = {"csrf": csrf_of(client), **FORM, "cron": "0 12 1 1 *", "timezone": "Europe/Berlin"}
    page = client.post("/schedules/new/preview", data=fields).text
    on_days = client.post("/schedules/new/preview", data=fields | {"cron": "0 6 21,22,23,31 * *"}).text
    assert "the 21st, the 22nd, the 23rd, and the 31st" in on_days
    assert page.count("-01-01 12:00 CET") == 5
    assert 'value="nightly"' in page
    wrong = client.post("/schedules/new/preview", data=fields | {"timezone": "x"}, headers={"HX-Request": "true"})
    assert (wrong.status_code, "name one of IANA" in wrong.text, "<html" in wrong.text) == (200, True, False)


def test_another_projects_schedule_is_not_there(client: FlaskClient, context: AppContext) -> None:
    schedule = create_schedule(client, context)
    with context.database.write() as session:
        stranger = keys.create(session, "other").key
    theirs = signed_in(create_app(context).test_client(), stranger)
    assert "nightly" not in theirs.get("/schedules").text
    assert theirs.get(f"/schedules/{schedule.id}").status_code == 404
    assert theirs.get(f"/schedules/{schedule.id}/edit").status_code == 404
    for action in ("pause", "resume", "run", "edit", "delete"):
        answer = theirs.post(f"/schedules/{schedule.id}/{action}", data={"csrf": csrf_of(theirs), **FORM})
        assert answer.status_code == 404
    assert not only_schedule(context).paused


def test_a_run_says_how_its_batch_ended(client: FlaskClient, context: AppContext) -> None:
    schedule = create_schedule(client, context)
    client.post(f"/schedules/{schedule.id}/run", data={"csrf": csrf_of(client)})
    with context.database.write() as session:
        batch_id = session.query(Batch).one().id
        ended = {"status": "completed", "completed_at": 2_000_000_000, "total": 7, "completed": 5, "failed": 2}
        session.execute(update(Batch).values(**ended))
    for path in ("/schedules", f"/schedules/{schedule.id}"):
        page = client.get(path).text
        assert f'href="/batches/{batch_id}"' in page and "completed, 2 failed" in page


def test_the_batches_of_two_runs_are_a_click_from_being_compared(client: FlaskClient, context: AppContext) -> None:
    schedule = create_schedule(client, context)
    for _ in range(2):
        client.post(f"/schedules/{schedule.id}/run", data={"csrf": csrf_of(client)})
    with context.database.read() as session:
        older, newer = session.scalars(select(Batch.id).order_by(Batch.id))
    page = client.get(f"/schedules/{schedule.id}").text
    assert page.count("compare with the previous run") == 1 and f'href="/compare?a={older}&amp;b={newer}"' in page


def test_a_schedule_is_made_paused_run_and_deleted(
    visit: Open, stack: RunningStack, other_project: openai.OpenAI
) -> None:
    window = visit()
    page = window.sign_in(stack.key, "/schedules/new")
    page.get_by_label("Name").fill("<b>on a page")
    page.get_by_label("Cron expression").fill("0 12 1 1 *")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    expect(page.locator("#shown li")).to_have_count(5)
    expect(page.locator("#shown li").first).to_contain_text("-01-01 12:00 CET")
    page.get_by_label("Text of the prompts").fill("What is new on {{date}}?")
    expect(page.get_by_label("Or a template")).to_be_hidden()
    window.check_accessibility()
    page.get_by_role("button", name="Create schedule").click()
    expect(page.get_by_role("heading", name="<b>on a page")).to_be_visible()
    page.get_by_role("link", name="Change…").click()
    expect(page.get_by_label("Text of the prompts")).to_have_value("What is new on {{date}}?")
    page.get_by_label("Cron expression").fill("0 12 2 1 *")
    expect(page.locator("#shown")).to_contain_text("At 12:00 on January 2")
    window.check_accessibility()
    page.get_by_role("button", name="Change schedule").click()
    expect(page.get_by_text("At 12:00 on January 2")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("None while it is paused.")).to_be_visible()
    page.get_by_role("button", name="Run now").click()
    page.wait_for_url("**/batches/batch_*")
    batch_id = page.url.rpartition("/")[2]
    assert stack.client.batches.retrieve(batch_id).batchyard["schedule_id"]
    window.leave("/schedules")
    card = page.locator("article.schedule", has_text="<b>on a page")
    expect(card.locator(f"a[href='/batches/{batch_id}']")).to_be_visible()
    window.check_accessibility()
    assert batch_id not in visit().sign_in(other_project.api_key, "/schedules").content()
    card.locator("summary").click()
    card.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()
    expect(card).to_have_count(0)
