"""/audit: what is named there can be opened."""

from __future__ import annotations

import json
import re

from flask.testing import FlaskClient

from store import keys
from tasks.context import AppContext
from tests.support.planned import pause, plan_batch
from tests.support.stacks import a_chat
from tests.webapp.pages.conftest import csrf_of, signed_in
from webapp import create_app


def test_what_an_event_is_about_is_a_link_to_its_page(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        ann = keys.create(session, "default", admin=True, label="Ann")
        headers = {"Authorization": f"Bearer {ann.key}"}
        me = keys.authenticate(session, ann.key)
    batch = plan_batch(context, me.project_id, ["one"])
    pause(context.database, me, batch)
    body = {
        "name": "nightly",
        "cron": "0 6 * * *",
        "timezone": "UTC",
        "input": {"template": json.dumps(a_chat("one", "It is {{date}}"))},
        "batch": {"endpoint": "/v1/chat/completions", "completion_window": "24h"},
    }
    schedule = client.post("/v1/schedules", json=body, headers=headers).get_json()
    client.post("/keys", data={"csrf": csrf_of(client), "project": "other", "label": "theirs"})
    page = client.get("/audit").text
    links = re.findall(r'<td class="whole"><a href="([^"]*)"><code', page)
    assert f"/batches/{batch.id}" in links and f"/schedules/{schedule['id']}" in links
    assert any(link.startswith("/keys#key-") for link in links)
    assert {client.get(link).status_code for link in links} == {200}


def test_another_projects_batch_is_named_without_a_link(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        key = keys.create(session, "other").key
        theirs = keys.authenticate(session, key)
    batch = plan_batch(context, theirs.project_id, ["one"])
    pause(context.database, theirs, batch)
    page = client.get("/audit").text
    assert batch.id in page and f"/batches/{batch.id}" not in page
    assert signed_in(create_app(context).test_client(), key).get("/audit").status_code == 403
