"""/schedules: recurring batches are created, watched and stopped on their pages."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import openai
import pytest
from flask.testing import FlaskClient
from playwright.sync_api import expect
from sqlalchemy import select, update

from store import files, keys
from store.records import Batch, File, Project, Schedule
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


def test_all_that_the_form_offers_reaches_the_schedule(client: FlaskClient, context: AppContext) -> None:
    schedule = create_schedule(client, context, template=f"{TEMPLATE}\r\n")
    assert (schedule.name, schedule.cron, schedule.timezone) == ("nightly", "30 6 29 2 *", "Asia/Kathmandu")
    assert (schedule.overlap, schedule.catch_up, schedule.input["kind"]) == ("allow", "none", "template")
    assert (schedule.batch["completion_window"], schedule.batch["metadata"]) == ("2h", {"day": "{{date}}"})
    assert schedule.batch["post_process"] == [{"step": "parquet"}]
    assert context.artifacts.read(schedule.input_sha256).decode() == f"{TEMPLATE}\n"
    for path in ("/schedules", f"/schedules/{schedule.id}"):
        page = client.get(path).text
        assert "-02-29 06:30 +0545" in page
        assert "<img src=x" not in page


def test_a_schedule_of_a_stored_file(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        owner, sha256 = session.query(Project).one().id, context.artifacts.put(TEMPLATE.encode())
        file = files.create(session, owner, filename="<i>", purpose="batch", size=9, sha256=sha256, expires_after=None)
    assert "&lt;i&gt;" in client.get("/schedules/new").text
    assert create_schedule(client, context, template="", file_id=file.id).input["file_id"] == file.id


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"timezone": "Berlin"}, "timezone"),
        ({"template": ""}, "file_id"),
        ({"template": "no json"}, "template"),
        ({"file_id": "file-nope", "template": ""}, "file_id"),
        ({"completion_window": "400d"}, "completion_window"),
        ({"metadata": "x"}, "metadata"),
    ],
)
def test_what_cannot_be_meant_comes_back_with_all_that_was_typed(
    client: FlaskClient, context: AppContext, fields: dict[str, Any], field: str
) -> None:
    answer = client.post("/schedules", data={"csrf": csrf_of(client), **FORM, **fields})
    assert answer.status_code == 400
    assert f'<a href="#{field}">' in answer.text, answer.text
    assert f'id="{field}"' in answer.text
    assert '<option value="cancel_previous"' in answer.text and '<option value="allow" selected' in answer.text
    with context.database.read() as session:
        assert session.query(Schedule).count() == 0


def test_the_next_five_times_are_shown_without_scripts_too(client: FlaskClient) -> None:
    fields = {"csrf": csrf_of(client), **FORM, "cron": "0 12 1 1 *", "timezone": "Europe/Berlin"}
    page = client.post("/schedules/new/preview", data=fields).text
    assert page.count("-01-01 12:00 CET") == 5
    assert 'value="nightly"' in page
    wrong = client.post("/schedules/new/preview", data=fields | {"timezone": "x"}, headers={"HX-Request": "true"})
    assert (wrong.status_code, "did you mean" in wrong.text, "<html" in wrong.text) == (200, True, False)


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


PROMPTS = {
    "holds": "prompts",
    "text": "News of {{date}}?\r\n---\r\nWhat is\r\nleft?",
    "format": "prompts",
    "run": "/v1/chat/completions echo",
    "system": "Be brief.",
    "temperature": "0.5",
    "stop": '["END"]',
    "template": "",
    "priority": "high",
}


def fields_of(page: str) -> dict[str, str]:
    """The fields of a page's form as a browser would send them."""
    form = page.partition('<form id="new"')[2]
    inputs = re.findall(r'<input [^>]*name="([^"]+)" type="[^"]*" value="([^"]*)"', form)
    hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form)
    ticked = re.findall(r'<input type="(?:radio|checkbox)" name="([^"]+)" value="([^"]+)" checked', form)
    chosen = re.findall(
        r'<select[^>]* name="([^"]+)"(?:(?!</select>).)*?<option(?: value="([^"]*)")? selected>([^<]*)', form, re.DOTALL
    )
    areas = re.findall(r'<textarea [^>]*name="([^"]+)"[^>]*>\n([^<]*)</textarea>', form)
    fields = [*inputs, *hidden, *ticked, *((name, value or text) for name, value, text in chosen), *areas]
    return {name: html.unescape(value) for name, value in fields}


def test_prompts_and_a_model_become_the_requests_of_every_run(client: FlaskClient, context: AppContext) -> None:
    schedule = create_schedule(client, context, **PROMPTS)
    lines = context.artifacts.read(schedule.input_sha256).decode().splitlines()
    bodies = [json.loads(line)["body"] for line in lines]
    assert [body["messages"][1]["content"] for body in bodies] == ["News of {{date}}?", "What is\nleft?"]
    assert all(body["messages"][0] == {"role": "system", "content": "Be brief."} for body in bodies)
    assert [(body["model"], body["temperature"], body["stop"]) for body in bodies] == [("echo", 0.5, ["END"])] * 2
    days = [datetime.now(ZoneInfo("Asia/Kathmandu")).date()]
    client.post(f"/schedules/{schedule.id}/run", data={"csrf": csrf_of(client)})
    days.append(datetime.now(ZoneInfo("Asia/Kathmandu")).date())
    with context.database.read() as session:
        batch = session.query(Batch).one()
        source = session.get_one(File, batch.input_file_id)
    assert batch.priority == 1
    content = context.artifacts.read(source.sha256).decode()
    assert any(f"News of {day}?" in content for day in days)


@pytest.mark.parametrize("changed", [PROMPTS, PROMPTS | {"format": "txt", "text": "one\r\ntwo"}, {}])
def test_a_schedule_that_is_sent_back_as_its_form_shows_it_stays_as_it_is(
    client: FlaskClient, context: AppContext, changed: dict[str, str]
) -> None:
    before = create_schedule(client, context, **changed)
    path = f"/schedules/{before.id}/edit"
    fields = fields_of(client.get(path).text)
    assert fields["holds"] == changed.get("holds", "requests")
    assert client.post(path, data=fields).status_code == 303
    after = only_schedule(context)
    kept = ("name", "cron", "timezone", "overlap", "catch_up", "batch", "input", "input_sha256", "next_run_at")
    assert {name: getattr(after, name) for name in kept} == {name: getattr(before, name) for name in kept}


def test_a_schedule_is_changed_in_all_that_its_form_shows(client: FlaskClient, context: AppContext) -> None:
    before = create_schedule(client, context)
    path = f"/schedules/{before.id}/edit"
    changed = {"name": "weekly", "cron": "0 9 * * MON", "timezone": "UTC", "completion_window": "5h", "priority": "low"}
    fields = fields_of(client.get(path).text) | PROMPTS | changed
    assert client.post(path, data=fields).location == f"/schedules/{before.id}"
    after = only_schedule(context)
    assert (after.name, after.cron, after.timezone) == ("weekly", "0 9 * * MON", "UTC")
    assert (after.batch["completion_window"], after.batch["priority"]) == ("5h", "low")
    assert "News of {{date}}?" in context.artifacts.read(after.input_sha256).decode()
    page = client.get("/schedules").text
    assert "at 09:00, on Mondays" in page and "weekly" in page
    wrong = client.post(path, data=fields | {"text": "\r\n"})
    assert (wrong.status_code, '<a href="#text">' in wrong.text, "weekly" in wrong.text) == (400, True, True)


def test_a_schedule_of_jobs_keeps_its_recipe_when_its_time_is_changed(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        key = keys.create(session, "default").key
    options = {"model": "echo", "n": 2}
    body = {
        "name": "nightly",
        "cron": "0 3 * * *",
        "input": {"template": '{"prompt": "hello {{date}}"}'},
        "job": {"recipe": "rollout", "options": options, "seed": 5, "completion_window": "2h"},
    }
    made = client.post("/v1/schedules", json=body, headers={"Authorization": f"Bearer {key}"})
    assert made.status_code == 200, made.text
    path = f"/schedules/{made.get_json()['id']}/edit"
    fields = fields_of(client.get(path).text) | {"cron": "0 4 * * *", "completion_window": "3h"}
    assert client.post(path, data=fields).status_code == 303
    after = only_schedule(context)
    assert after.job is not None
    assert (after.cron, after.job["completion_window"], after.job["seed"]) == ("0 4 * * *", "3h", 5)
    assert (after.job["recipe"], after.job["options"]) == ("rollout", options)


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
    assert page.count("compare with the run before") == 1 and f'href="/compare?a={older}&amp;b={newer}"' in page


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
    page.get_by_role("button", name="Make schedule").click()
    expect(page.get_by_role("heading", name="<b>on a page")).to_be_visible()
    page.get_by_role("link", name="Change…").click()
    expect(page.get_by_label("Text of the prompts")).to_have_value("What is new on {{date}}?")
    page.get_by_label("Cron expression").fill("0 12 2 1 *")
    expect(page.locator("#shown")).to_contain_text("at 12:00, on 2 January")
    window.check_accessibility()
    page.get_by_role("button", name="Change schedule").click()
    expect(page.get_by_text("at 12:00, on 2 January")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("None while it is paused.")).to_be_visible()
    page.get_by_role("button", name="Run now").click()
    page.wait_for_url("**/batches/batch_*")
    batch_id = page.url.rpartition("/")[2]
    assert stack.client.batches.retrieve(batch_id).batchyard["schedule_id"]
    page.goto("/schedules")
    card = page.locator("article.schedule", has_text="<b>on a page")
    expect(card.locator(f"a[href='/batches/{batch_id}']")).to_be_visible()
    window.check_accessibility()
    assert batch_id not in visit().sign_in(other_project.api_key, "/schedules").content()
    card.locator("summary").click()
    card.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()
    expect(card).to_have_count(0)
