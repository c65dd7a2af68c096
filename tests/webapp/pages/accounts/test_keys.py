"""/keys: administrators manage projects and their keys."""

from __future__ import annotations

from collections.abc import Callable

import openai
import pytest
from flask.testing import FlaskClient
from playwright.sync_api import expect

from store import keys
from store.records import ApiKey, Project
from tasks.context import AppContext
from tests.support.stacks import RunningStack
from tests.webapp.pages.conftest import Visit, csrf_of, signed_in
from webapp import create_app

Open = Callable[..., Visit]


def project(context: AppContext, name: str = "default") -> Project:
    with context.database.read() as session:
        return session.query(Project).filter_by(name=name).one()


def test_only_an_administrator_sees_or_changes_anything(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        key = keys.create(session, "plain")
    plain = signed_in(create_app(context).test_client(), key.key)
    csrf, there = csrf_of(plain), project(context, "plain").id
    assert 'href="/keys"' not in plain.get("/").text and 'href="/keys"' in client.get("/").text
    answers = [
        plain.get("/keys"),
        plain.get(f"/keys/{there}"),
        plain.post("/keys", data={"csrf": csrf, "project": "plain", "admin": "1"}),
        plain.post(f"/keys/{key.id}/revoke", data={"csrf": csrf}),
        plain.post(f"/keys/{there}/change", data={"csrf": csrf, "max_segments": "9"}),
    ]
    assert [answer.status_code for answer in answers] == [403] * 5
    assert all("Not allowed" in answer.text for answer in answers)
    with context.database.read() as session:
        assert session.query(ApiKey).filter_by(admin=True).count() == 1
        assert session.query(ApiKey).filter(ApiKey.revoked_at.is_not(None)).count() == 0


def test_a_projects_tier_and_limits_are_settled_and_emptied_again(client: FlaskClient, context: AppContext) -> None:
    path, csrf = f"/keys/{project(context).id}/change", csrf_of(client)
    settings = {"tier": "premium", "max_segments": "0", "cache_bytes": "1000000", "live_tier": "flex"}
    settings["max_stored_bytes"] = "5000"
    assert client.post(path, data={"csrf": csrf, **settings}).status_code == 303
    settled = project(context)
    assert (settled.tier, settled.max_segments, settled.cache_bytes) == ("premium", 0, 1_000_000)
    assert (settled.live_tier, settled.max_stored_bytes) == ("flex", 5000)
    page = client.get("/keys").text
    assert '<option value="flex" selected>' in page
    assert '<option value="premium" selected>' in page and 'value="0"' in page and 'value="1000000"' in page
    assert client.post(path, data={"csrf": csrf} | dict.fromkeys(settings, "")).status_code == 303
    settled = project(context)
    assert (settled.tier, settled.max_segments, settled.cache_bytes, settled.live_tier) == (None, None, None, None)
    refused = client.post(path, data={"csrf": csrf, "live_tier": "gold"})
    assert refused.status_code == 400 and "live_tier" in refused.text


@pytest.mark.parametrize(
    "settings", [{"tier": "gold"}, {"max_segments": "many"}, {"max_segments": "-1"}, {"cache_bytes": "0"}]
)
def test_what_cannot_be_settled_is_told_and_changes_nothing(
    client: FlaskClient, context: AppContext, settings: dict[str, str]
) -> None:
    answer = client.post(f"/keys/{project(context).id}/change", data={"csrf": csrf_of(client), **settings})
    assert (answer.status_code, 'role="alert"' in answer.text) == (400, True)
    assert (project(context).tier, project(context).max_segments, project(context).cache_bytes) == (None, None, None)


def test_of_many_keys_there_are_pages(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        created = [keys.create(session, "default") for _ in range(25)]
    assert created[-1].id in client.get("/keys").text and created[0].id not in client.get("/keys").text
    page = client.get(f"/keys/{project(context).id}").text
    after = page.partition("?after=")[2].partition('"')[0]
    assert created[0].id in client.get(f"/keys/{project(context).id}?after={after}").text
    assert client.get("/keys/proj_nope").status_code == 404


def test_a_project_without_a_name_is_refused(client: FlaskClient) -> None:
    answer = client.post("/keys", data={"csrf": csrf_of(client), "project": " "})
    assert (answer.status_code, "a name has 1 to 128 characters" in answer.text) == (400, True)


def test_a_key_is_shown_once_works_and_is_revoked(visit: Open, stack: RunningStack) -> None:
    window = visit()
    page = window.sign_in(stack.key, "/keys")
    page.get_by_label("Project", exact=True).fill("<b>made on a page")
    page.get_by_label("Label").fill("nightly <job>")
    page.get_by_label("Expires").select_option("in 30 days")
    page.get_by_role("button", name="Create key").click()
    key = page.locator("#made").inner_text()
    window.check_accessibility()
    page.reload()
    expect(page.locator("#made")).to_have_count(0)
    expect(page.get_by_role("row").filter(has_text="nightly <job>")).to_have_count(1)
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0)
    assert client.files.list().data == []
    page.goto("/keys")
    assert key not in page.content()
    assert page.get_by_role("heading", name="<b>made on a page").is_visible()
    row = page.locator(f"tr#key-{key.split('-')[1]}")
    row.locator("summary").click()
    row.get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    with pytest.raises(openai.AuthenticationError):
        client.files.list()
