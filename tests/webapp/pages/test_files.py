"""/files: the project's files can be downloaded, deleted and used as inputs."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from flask.testing import FlaskClient
from playwright.sync_api import expect

from store import files, keys
from store.records import File
from tasks.context import AppContext
from tasks.intake import validation
from tests.support.planned import answers, end_batch, finish_segment, plan_batch
from tests.support.stacks import RunningStack, a_chat
from tests.support.webapps import project_of
from tests.support.written_jobs import Written
from tests.webapp.pages.conftest import Visit, csrf_of, signed_in
from webapp import create_app

Open = Callable[..., Visit]


def new_file(context: AppContext, name: str, content: bytes = b"x", purpose: str = "batch") -> File:
    with context.database.write() as session:
        return files.create(
            session,
            project_of(context),
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
    first = client.get("/files?limit=3&kind=unused").text
    assert [name for name in names if name in first] == names[2:]
    after = first.partition("?after=")[2].partition("&")[0]
    second = client.get(f"/files?after={after}&limit=3&kind=unused").text
    assert [name for name in names if name in second] == names[:2]
    assert 'rel="next"' in first and 'rel="next"' not in second


def words(page: str) -> str:
    """The words of the table of files, with one space between them."""
    table = page.partition("<table")[2].partition("</table>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", f"<table{table}")).split())


def test_files_stand_under_the_batch_that_they_belong_to_as_what_they_are(
    client: FlaskClient, context: AppContext
) -> None:
    new_file(context, "lonely.jsonl")
    batch = plan_batch(context, project_of(context), ["one", "two"])
    finish_segment(context, batch, answers([1, 2]))
    end_batch(context, batch)
    page = client.get("/files").text
    assert f'<a href="/batches/{batch.id}">' in page
    shown = words(page)
    assert "Not used by a batch or job yet batch lonely.jsonl" in shown
    group = shown.partition(" Batch ")[2]
    assert re.findall(r"(input|output|errors|manifest) [\w.-]+\.jsonl?", group) == ["input", "output", "manifest"]
    for kind, others in (("output", ("manifest.json", "lonely")), ("input", ("output.jsonl", "lonely"))):
        filtered = words(client.get(f"/files?kind={kind}").text)
        assert f" {kind} " in filtered and not any(other in filtered for other in others)
    unused = words(client.get("/files?kind=unused").text)
    assert "lonely.jsonl" in unused and "output.jsonl" not in unused
    assert client.get("/files?kind=pictures").status_code == 400


def test_files_are_searched_by_their_name_and_by_their_batch_and_job(client: FlaskClient, context: AppContext) -> None:
    new_file(context, "lonely.jsonl")
    batch = plan_batch(context, project_of(context), ["one"])
    written = Written(context, project_of(context), name="nightly check")
    written.artifact("rollouts.parquet", b"PAR1")
    written.artifact("view.json", b"[]")
    for text, there in (
        ("LONELY", ["lonely.jsonl"]),
        (batch.id, [batch.id]),
        ("nightly", ["rollouts.parquet", "view.json"]),
        ("rollouts", ["rollouts.parquet"]),
        ("100%", []),
    ):
        page = client.get("/files", query_string={"q": text}).text
        names = ("lonely.jsonl", batch.id, "rollouts.parquet")
        table = page.partition("<table")[2]
        assert [name for name in names if name in table] == [name for name in there if name in names], text
    assert "output rollouts.parquet" in words(client.get("/files?q=nightly").text)
    assert "2 stages and jobs have their own files" in words(client.get("/files?q=nightly").text)


@pytest.mark.parametrize(
    ("scheme", "width"), [pytest.param("light", 1280, marks=pytest.mark.exhaustive), ("dark", 390)]
)
def test_the_files_page_is_accessible_and_works_without_scripts(
    visit_served: Open, context: AppContext, scheme: Any, width: int
) -> None:
    lonely = new_file(context, "lonely.jsonl")
    plan_batch(context, project_of(context), ["one"])
    with context.database.write() as session:
        key = keys.create(session, "default").key
    window = visit_served(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = window.sign_in(key, "/files")
    window.check_accessibility()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plain = visit_served(java_script_enabled=False)
    page = plain.sign_in(key, "/files")
    page.get_by_label("Kind").select_option("not used yet")
    page.get_by_role("button", name="Show").click()
    row = page.locator(f"tr[data-file='{lonely.id}']")
    expect(page.locator("tbody tr:not(.group)")).to_have_count(1)
    row.locator("summary").click()
    row.get_by_role("button", name="Delete").click()
    expect(page.locator(f"tr[data-file='{lonely.id}']")).to_have_count(0)


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
    row = page.locator(f"tr[data-file='{file.id}']")
    row.locator("summary").click()
    window.check_accessibility()
    row.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    page.locator(f"tr[data-file='{kept.id}']").get_by_role("link", name="New batch with this file").click()
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
