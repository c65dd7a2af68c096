"""The form of a schedule: what is typed becomes the schedule, and a schedule stands in it as it is."""

from __future__ import annotations

import html
import json
import re
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from batchyard.models import ModelSpec
from store import files, keys
from store.records import Batch, File, Project, Schedule
from tasks.context import AppContext
from tests.support.webapps import requested
from tests.webapp.pages.automation.test_schedules import FORM, TEMPLATE, create_schedule, only_schedule
from tests.webapp.pages.conftest import csrf_of
from webapp.pages.automation import schedule_form

PROMPTS = {
    "holds": "prompts",
    "text": "News of {{date}}?\r\n---\r\nWhat is\r\nleft?",
    "format": "prompts",
    "endpoint": "/v1/chat/completions",
    "model": "echo",
    "system": "Be brief.",
    "temperature": "0.5",
    "stop": '["END"]',
    "template": "",
    "priority": "high",
}


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


def fields_of(page: str) -> dict[str, str]:
    """The fields of a page's form as a browser would send them."""
    form = page.partition('<form id="new"')[2]
    inputs = re.findall(r'<input [^>]*name="([^"]+)" type="[^"]*" value="([^"]*)"', form)
    hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form)
    ticked = re.findall(r'<input type="(?:radio|checkbox)" name="([^"]+)" value="([^"]+)" checked', form)
    chosen = re.findall(
        r'<select[^>]* name="([^"]+)"(?:(?!</select>).)*?<option[^>]*?(?: value="([^"]*)")? selected>([^<]*)',
        form,
        re.DOTALL,
    )
    areas = re.findall(r'<textarea [^>]*name="([^"]+)"[^>]*>\n([^<]*)</textarea>', form)
    fields = [*inputs, *hidden, *ticked, *((name, value or text) for name, value, text in chosen), *areas]
    return {name: html.unescape(value) for name, value in fields}


def requests_of(context: AppContext, schedule: Schedule) -> list[dict[str, Any]]:
    return [json.loads(line) for line in context.artifacts.read(schedule.input_sha256).decode().splitlines()]


def test_prompts_and_a_model_become_the_requests_of_every_run(client: FlaskClient, context: AppContext) -> None:
    schedule = create_schedule(client, context, **PROMPTS)
    bodies = [request["body"] for request in requests_of(context, schedule)]
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


def test_what_the_form_does_not_show_stays_as_it_is(client: FlaskClient, context: AppContext) -> None:
    before = create_schedule(client, context)
    unseen = {"stop_when": {"failed": 0.2}, "guard": "repetition", "callback_url": "https://receiver.example/"}
    watched = {"kind": "watch", "bytes": 0, "file_id": None, "artifact": None, "url": "s3://team/in/*.jsonl"}
    with context.database.write() as session:
        schedule = session.get_one(Schedule, before.id)
        schedule.batch, schedule.input = {**schedule.batch, **unseen}, watched
    path = f"/schedules/{before.id}/edit"
    answer = client.post(path, data=fields_of(client.get(path).text) | {"name": "hourly"})
    assert answer.status_code == 303, answer.text
    after = only_schedule(context)
    assert (after.name, after.input) == ("hourly", watched)
    kept = {name: after.batch[name] for name in unseen}
    assert kept == unseen | {"stop_when": {**dict.fromkeys(kept["stop_when"]), "failed": 0.2}}


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
    assert "At 09:00 on Monday" in page and "weekly" in page
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


TEXTS = st.text(st.sampled_from('ab{}-"\\ \n\u2028'), min_size=1, max_size=8)
VALUES = {
    "temperature": st.sampled_from([0, 0.5, 1, 1.0]),
    "max_tokens": st.integers(1, 9),
    "seed": st.integers(0, 9),
    "stop": TEXTS.filter(str.strip) | st.lists(TEXTS, min_size=1, max_size=2),
    "top_k": st.just(3),
}


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Requests as a client writes them into a template: of one kind, mostly, with ids that mostly count."""
    common: dict[str, Any] = draw(st.fixed_dictionaries({}, optional=VALUES))
    system = draw(st.none() | TEXTS)
    first = draw(st.integers(1, 3))
    step = draw(st.integers(1, 3))
    lines = []
    for number, text in enumerate(draw(st.lists(TEXTS, min_size=1, max_size=3))):
        messages = [] if system is None else [{"role": "system", "content": system}]
        body = {"model": "echo", "messages": [*messages, {"role": "user", "content": text}], **common}
        name = draw(st.sampled_from(["prompt", "prompt", "prompt", "mine"]))
        line = {"custom_id": f"{name}-{first + step * number}", "method": "POST", "url": FORM["endpoint"], "body": body}
        lines.append(json.dumps(line))
    return "\n".join(lines)


def schedule_of(context: AppContext, template: str) -> Schedule:
    """A schedule as the API makes it, not in the records."""
    batch = {"endpoint": FORM["endpoint"], "completion_window": "2h", "metadata": None, "post_process": []}
    return Schedule(
        name="nightly", cron="* * * * *", timezone="UTC", overlap="skip", catch_up="latest", batch=batch,
        input={"kind": "template", "bytes": len(template), "file_id": None, "artifact": None},
        input_sha256=context.artifacts.put(template.encode()),
    )  # fmt: skip


def sent_back(client: FlaskClient, schedule: Schedule, **changed: str) -> dict[str, Any]:
    """The body of the request that a browser makes of the form as it is shown, with these fields changed."""
    fields = schedule_form.fields_of(schedule) | changed
    areas = ("text", "system", "template", "response_format", "metadata")
    data = {name: value.replace("\n", "\r\n") if name in areas else value for name, value in fields.items()}
    with requested(client, "/schedules/x/edit", method="POST", data=data):
        return schedule_form.body(schedule)


@given(templates())
def test_a_form_that_is_sent_back_as_it_is_changes_no_request(
    client: FlaskClient, context: AppContext, template: str
) -> None:
    with client.application.app_context():
        body = sent_back(client, schedule_of(context, template))
    assert "input" not in body
    assert body["batch"]["endpoint"] == FORM["endpoint"]


def test_only_what_is_changed_in_the_form_changes_in_the_requests(client: FlaskClient, context: AppContext) -> None:
    before = create_schedule(client, context, **PROMPTS)
    path = f"/schedules/{before.id}/edit"
    assert client.post(path, data=fields_of(client.get(path).text) | {"system": "Be kind."}).status_code == 303
    after = only_schedule(context)
    for old, new in zip(requests_of(context, before), requests_of(context, after), strict=True):
        assert new["body"]["messages"][0] == {"role": "system", "content": "Be kind."}
        new["body"]["messages"][0] = old["body"]["messages"][0]
        assert new == old


def test_prompts_that_the_api_has_replaced_are_not_shown(client: FlaskClient, context: AppContext) -> None:
    schedule = create_schedule(client, context, **PROMPTS)
    with context.database.write() as session:
        key = keys.create(session, "default").key
    changed = client.post(
        f"/v1/schedules/{schedule.id}",
        json={"input": {"template": TEMPLATE}},
        headers={"Authorization": f"Bearer {key}"},
    )
    assert "prompts" not in changed.get_json()["input"]
    fields = fields_of(client.get(f"/schedules/{schedule.id}/edit").text)
    assert (fields["holds"], fields["template"]) == ("requests", TEMPLATE)


def test_a_template_of_a_model_that_is_not_served_any_more_stays_whole_requests(
    client: FlaskClient, context: AppContext
) -> None:
    context.models["gone"] = ModelSpec(name="gone", engine="echo")
    schedule = create_schedule(client, context, **PROMPTS | {"model": "gone"})
    path = f"/schedules/{schedule.id}/edit"
    assert fields_of(client.get(path).text)["holds"] == "prompts"
    del context.models["gone"]
    fields = fields_of(client.get(path).text)
    assert (fields["holds"], '"gone"' in fields["template"]) == ("requests", True)
    refused = client.post(path, data=fields)
    assert refused.status_code == 400 and "gone" in refused.text and "served" in refused.text


def test_a_template_too_long_for_the_form_stays_unless_another_input_is_chosen(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_form, "SHOWN", len(TEMPLATE) - 1)
    schedule = create_schedule(client, context)
    path = f"/schedules/{schedule.id}/edit"
    fields = fields_of(client.get(path).text)
    assert fields["template"] == ""
    assert client.post(path, data=fields | {"name": "weekly"}).status_code == 303
    after = only_schedule(context)
    assert (after.name, after.input_sha256) == ("weekly", schedule.input_sha256)
