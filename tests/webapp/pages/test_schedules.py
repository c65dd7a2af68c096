"""/schedules: recurring batches are created, watched and stopped on their pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from flask.testing import FlaskClient
from playwright.sync_api import expect

from store import files, keys
from store.records import Project, Schedule
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
    for action in ("pause", "resume", "run", "delete"):
        answer = theirs.post(f"/schedules/{schedule.id}/{action}", data={"csrf": csrf_of(theirs)})
        assert answer.status_code == 404
    assert not only_schedule(context).paused


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
    page.get_by_label("Or a template").fill(TEMPLATE)
    window.check_accessibility()
    page.get_by_role("button", name="Make schedule").click()
    expect(page.get_by_role("heading", name="<b>on a page")).to_be_visible()
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
