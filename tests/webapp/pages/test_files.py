"""/files: the project's files can be downloaded, deleted and used as inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import openai
from flask.testing import FlaskClient
from playwright.sync_api import expect

from store import files, keys
from store.records import File, Project
from tasks.context import AppContext
from tasks.intake import validation
from tests.support.stacks import RunningStack, a_chat
from tests.webapp.pages.conftest import Visit, csrf_of, signed_in
from webapp import create_app

Open = Callable[..., Visit]


def new_file(context: AppContext, name: str, content: bytes = b"x", purpose: str = "batch") -> File:
    with context.database.write() as session:
        return files.create(
            session,
            session.query(Project).filter_by(name="default").one().id,
            filename=name,
            purpose=purpose,
            size=len(content),
            sha256=context.artifacts.put(content),
            expires_after=3600,
        )


def test_the_name_of_another_projects_file_is_on_no_page(client: FlaskClient, context: AppContext) -> None:
    secret = new_file(context, "secret.jsonl")
    with context.database.write() as session:
        key = keys.create(session, "other").key
    app = create_app(context)
    body = {"input_file_id": secret.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = app.test_client().post("/v1/batches", json=body, headers={"Authorization": f"Bearer {key}"}).get_json()
    stranger = signed_in(app.test_client(), key)

    def check() -> None:
        for path in ("/", f"/batches/{batch['id']}"):
            page = stranger.get(path)
            assert (page.status_code, "secret.jsonl" in page.text, secret.id in page.text) == (200, False, True)

    check()
    assert validation.run(context, batch["id"], "test")
    check()


def test_files_are_listed_page_by_page_newest_first(client: FlaskClient, context: AppContext) -> None:
    names = [f"{number}.jsonl" for number in range(5)]
    for name in names:
        new_file(context, name)
    first = client.get("/files?limit=3").text
    assert [name for name in names if name in first] == names[2:]
    after = first.partition("?after=")[2].partition("&")[0]
    second = client.get(f"/files?after={after}&limit=3").text
    assert [name for name in names if name in second] == names[:2]
    assert 'rel="next"' in first and 'rel="next"' not in second


def test_a_file_of_a_nasty_name_is_text_and_comes_down_as_it_went_up(client: FlaskClient, context: AppContext) -> None:
    file = new_file(context, '"><script>alert(1)</script>', b"\x00\xffcontent", "user_data")
    page = client.get("/files").text
    assert "<script>alert" not in page and "&#34;&gt;&lt;script&gt;alert(1)" in page
    assert f"/new?file={file.id}" not in page
    answer = client.get(f"/files/{file.id}/content")
    assert answer.data == b"\x00\xffcontent"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_what_is_another_projects_is_not_there(client: FlaskClient, context: AppContext) -> None:
    file = new_file(context, "secret.jsonl")
    with context.database.write() as session:
        stranger = keys.create(session, "other").key
    theirs = signed_in(create_app(context).test_client(), stranger)
    assert "secret.jsonl" not in theirs.get("/files").text
    assert theirs.get(f"/files/{file.id}/content").status_code == 404
    assert theirs.post(f"/files/{file.id}/delete", data={"csrf": csrf_of(theirs)}).status_code == 404
    assert client.get(f"/files/{file.id}/content").status_code == 200


def test_a_file_is_not_deleted_without_the_forms_token(client: FlaskClient, context: AppContext) -> None:
    file = new_file(context, "mine.jsonl")
    assert client.post(f"/files/{file.id}/delete").status_code == 403
    assert client.get(f"/files/{file.id}/content").status_code == 200


def test_a_file_is_deleted_once_that_is_confirmed(
    visit: Open, stack: RunningStack, other_project: openai.OpenAI
) -> None:
    content = json.dumps(a_chat("a", "b")).encode()
    file, kept = (
        stack.client.files.create(file=(f"{name}.jsonl", content), purpose="batch") for name in ("go", "stay")
    )
    window = visit()
    page = window.sign_in(stack.key, "/files")
    row = page.locator(f"tr#{file.id}")
    row.locator("summary").click()
    window.check_accessibility()
    row.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    page.locator(f"tr#{kept.id}").get_by_role("link", name="New batch with this file").click()
    expect(page.locator("#shown")).to_contain_text("1 request in all")
    assert kept.id not in visit().sign_in(other_project.api_key, "/files").content()


def test_files_of_schedules_runs_are_listed_on_demand(client: FlaskClient, context: AppContext) -> None:
    new_file(context, "mine.jsonl")
    with context.database.write() as session:
        headers = {"Authorization": f"Bearer {keys.create(session, 'default').key}"}
    body = {
        "name": "nightly",
        "cron": "0 6 * * *",
        "timezone": "UTC",
        "input": {"template": json.dumps(a_chat("one", "It is {{date}}"))},
        "batch": {"endpoint": "/v1/chat/completions", "completion_window": "24h"},
    }
    schedule = client.post("/v1/schedules", json=body, headers=headers).get_json()
    run = client.post(f"/v1/schedules/{schedule['id']}/run", headers=headers)
    assert run.status_code == 200, run.text
    for path, listed in (("/files", False), ("/files?runs=1", True)):
        page = client.get(path).text
        assert ("mine.jsonl" in page, f"{schedule['id']}_" in page) == (True, listed), path


def test_a_file_whose_content_is_lost_says_so_and_what_to_do(client: FlaskClient, context: AppContext) -> None:
    file = new_file(context, "lost.jsonl", b"lost")
    Path(context.artifacts.path(file.sha256)).unlink()
    answer = client.get(f"/files/{file.id}/content")
    assert answer.status_code == 503
    assert "lost.jsonl" in answer.text and "upload it again" in answer.text
    assert str(context.settings.data) not in answer.text


def test_no_answer_says_where_the_artifact_store_is(client: FlaskClient, context: AppContext) -> None:
    file = new_file(context, "unreadable.jsonl", b"unreadable")
    path = Path(context.artifacts.path(file.sha256))
    path.unlink()
    path.mkdir()  # cannot be read as a file
    answer = client.get(f"/files/{file.id}/content")
    assert answer.status_code == 503
    assert "artifact store cannot be read" in answer.text
    assert str(context.settings.data) not in answer.text
