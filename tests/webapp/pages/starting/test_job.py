"""/new/job/<recipe>: a job from a form, what it would be, and an ended one that runs again."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flask.testing import FlaskClient
from PIL import Image
from playwright.sync_api import expect
from werkzeug.test import TestResponse

from store import files, keys
from store.records import File, Job, Project
from tasks.context import AppContext
from tasks.intake import preview
from tests.support.stacks import RunningStack
from tests.support.terminal import batchyard
from tests.webapp.pages.conftest import Visit, csrf_of, signed_in
from webapp import create_app
from webapp.pages.starting import asks

Open = Callable[..., Visit]
ROWS = "prompt,answer\nhello,hello\nbye,bye\n"


def send(client: FlaskClient, path: str = "/new/job/rollout", fragment: bool = False, **fields: Any) -> TestResponse:
    scored = {"option.reward": "exact", "option.ground_truth": "answer"}
    given = {"csrf": csrf_of(client), "option.model": "echo", "text": ROWS, "format": "csv"} | scored | fields
    data = {name.replace("__", "."): value for name, value in given.items() if value is not None}
    headers = {"HX-Request": "true"} if fragment else {}
    return client.post(path, data=data, content_type="multipart/form-data", headers=headers)


def look(client: FlaskClient, **fields: Any) -> str:
    """What the page shows beside the submit button, as text."""
    answer = send(client, "/new/job/rollout/preview", fragment=True, **fields)
    assert answer.status_code == 200
    return " ".join(re.sub("<[^>]+>", " ", answer.text).split())


def only_job(context: AppContext) -> Job:
    with context.database.read() as session:
        return session.query(Job).one()


def test_what_the_form_says_reaches_the_job(client: FlaskClient, context: AppContext) -> None:
    answer = send(
        client,
        option__n="3",
        option__reward="exact",
        option__ground_truth="answer",
        option__sampling__temperature="0.7",
        option__sampling__stop='["END", "."]',
        option__system="Be brief.\r\nAlways.",
        option__streaming="false",
        job_name="evals",
        completion_window="2h",
        metadata="team=search",
        seed="7",
    )
    job = only_job(context)
    assert (answer.status_code, answer.location) == (303, f"/jobs/{job.id}")
    options = {name: job.options[name] for name in ("model", "n", "reward", "ground_truth", "system", "streaming")}
    assert options == {
        **{"model": "echo", "n": 3, "reward": "exact", "ground_truth": "answer"},
        **{"system": "Be brief.\nAlways.", "streaming": False},
    }
    assert (job.options["sampling"]["temperature"], job.options["sampling"]["stop"]) == (0.7, ["END", "."])
    assert (job.name, job.completion_window, job.request_metadata, job.seed) == ("evals", "2h", {"team": "search"}, 7)
    assert context.artifacts.read(job.input_sha256) == ROWS.encode()
    assert job.input_name == "rows.csv"


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_an_upload_an_example_and_a_stored_file_are_inputs(client: FlaskClient, context: AppContext, name: str) -> None:
    content = ROWS.encode() if name.endswith("csv") else b'{"prompt": "hello", "answer": "hello"}\n'
    assert send(client, text=None, file=(io.BytesIO(content), name)).status_code == 303
    job = only_job(context)
    assert (job.input_name, context.artifacts.read(job.input_sha256)) == (name, content)
    again = send(client, text=None, stored=f"file:{job.input_file_id}", job_name="again")
    example = send(client, text=None, stored="example:rollout.jsonl")
    with context.database.read() as session:
        jobs = [session.get_one(Job, answer.location.rpartition("/")[2]) for answer in (again, example)]
    assert (jobs[0].input_file_id, jobs[1].input_name) == (job.input_file_id, "rollout.jsonl")


def test_a_form_that_is_sent_twice_makes_one_job(client: FlaskClient, context: AppContext) -> None:
    first, again, edited = (send(client, option__n=n, once="shown-once") for n in ("2", "2", "3"))
    assert first.location == again.location != edited.location
    with context.database.read() as session:
        assert session.query(Job).count() == 2


@pytest.mark.parametrize(
    ("fields", "message", "field"),
    [
        ({"option.n": "many"}, "Invalid value for &#39;options.n&#39;", "option.n"),
        ({"option.model": "gpt-9"}, "The model &#39;gpt-9&#39; is not served here", "option.model"),
        ({"option.sampling.temperature": "-1"}, "options.sampling.temperature", "option.sampling.temperature"),
        ({"option.reward": "exactly"}, "exactly", "option.reward"),
        ({"option.limit": ".nan"}, "this is not valid JSON", "option.limit"),
        ({"text": ""}, "Choose a file, or type or paste something.", "text"),
        ({"completion_window": "soon"}, "completion_window", "completion_window"),
        ({"metadata": "no equals"}, "Line 1 of the metadata", "metadata"),
        ({"seed": "-1"}, "seed", "seed"),
        ({"stored": "file:file-nope", "text": ""}, "No file found", "stored"),
    ],
)
def test_what_cannot_be_comes_back_with_all_that_was_typed_and_its_field(
    client: FlaskClient, context: AppContext, fields: dict[str, str], message: str, field: str
) -> None:
    typed = {"option.system": "kept", "job_name": "also kept"}
    answer = send(client, **typed, **fields)
    assert answer.status_code == 400
    assert message in answer.text
    assert f'href="#{field}"' in answer.text and f'id="{field}-wrong"' in answer.text
    assert "kept</textarea>" in answer.text and 'value="also kept"' in answer.text
    with context.database.read() as session:
        assert session.query(Job).count() == session.query(File).count() == 0


def test_beside_the_button_stands_what_it_would_be(client: FlaskClient, context: AppContext) -> None:
    shown = look(client, option__n="3", option__system="Be brief.")
    assert "Columns: prompt answer" in shown
    assert "Items 2 Requests, sample 6" in shown
    assert "No ETA: the speed of echo was not measured yet." in shown
    assert "Requests of the first item sample to echo" in shown
    assert "system Be brief. hello" in shown
    assert "As JSON" in shown
    with context.database.read() as session:
        assert session.query(Job).count() == session.query(File).count() == 0


def test_bad_rows_are_named_before_anything_is_submitted(client: FlaskClient) -> None:
    shown = look(client, text='{"prompt": "fine", "answer": "yes"}\n{"answer": "no"}\n', format="jsonl")
    assert "2 Row 2: The row has no column &#39;messages&#39; or &#39;prompt&#39;" in shown


def test_a_file_that_cannot_be_read_is_refused_and_a_stored_one_of_another_project_too(client: FlaskClient) -> None:
    assert "not Parquet" in look(client, text=None, file=(io.BytesIO(b"no table"), "a.parquet"))
    assert "none of the formats" in look(client, text=None, file=(io.BytesIO(b"what?"), "a.pdf"))
    assert "No file found" in look(client, text=None, stored="file:file-nope")


def test_of_a_large_text_only_the_beginning_is_looked_at(client: FlaskClient) -> None:
    content = b'{"prompt": "a question", "answer": "yes"}\n' * 20_000
    head = content[: preview.HEAD_BYTES + 1]
    shown = look(client, text=None, file=(io.BytesIO(head), "large.jsonl"), file_bytes=str(len(content)), option__n="2")
    assert "Items about 20,000 Requests, sample about 40,000" in shown
    assert "Estimated from the first 256.0 KiB of the input" in shown
    assert "wrong" not in shown
    few = look(client, text=None, file=(io.BytesIO(head), "a.jsonl"), file_bytes=str(len(content)), option__limit="9")
    assert "Items about 9 " in few
    assert "Items about 20,000" in look(client, text=None, file=(io.BytesIO(content), "large.jsonl"))


def test_a_table_that_is_cut_in_the_middle_of_a_cell_is_previewed(client: FlaskClient) -> None:
    content = b"prompt,answer\n" + b'"a question\nof two lines","yes, ""it"" is"\n' * 10_000
    for end in {content.rfind(b"\n", 0, size) + 1 for size in range(preview.HEAD_BYTES - 60, preview.HEAD_BYTES)}:
        beginning = asks.whole_rows(content[:end], "a.csv")
        assert content.startswith(beginning) and beginning.endswith(b' is"\n'), end
    head = content[: preview.HEAD_BYTES + 1]
    shown = look(client, text=None, file=(io.BytesIO(head), "a.csv"), file_bytes=str(len(content)))
    assert "Items about 10,000" in shown and "a question of two lines" in shown
    assert "not valid CSV" not in shown


def test_a_job_that_would_fail_is_not_made(client: FlaskClient, context: AppContext) -> None:
    answer = send(
        client, text='{"prompt": "fine", "answer": "yes"}\n{"answer": "no"}\n', format="jsonl", job_name="kept"
    )
    assert answer.status_code == 400
    assert "Some rows cannot run" in answer.text and 'value="kept"' in answer.text
    assert "Row 2: The row has no column" in answer.text
    with context.database.read() as session:
        assert session.query(Job).count() == 0


def test_without_scripts_the_preview_is_the_page_with_what_was_typed(client: FlaskClient) -> None:
    page = send(client, "/new/job/rollout/preview", option__system="kept", option__n="2").text
    assert "<html" in page and "kept</textarea>" in page and "Requests of the first item" in page


def test_an_unknown_recipe_is_not_there(client: FlaskClient) -> None:
    assert client.get("/new/job/nothing").status_code == 404
    assert send(client, "/new/job/nothing").status_code == 404


def test_another_projects_job_and_file_are_not_there(client: FlaskClient, context: AppContext) -> None:
    assert send(client).status_code == 303
    job = only_job(context)
    with context.database.write() as session:
        stranger = keys.create(session, "other").key
        owner = session.query(Project).filter_by(name="default").one().id
        mine = files.page(session, owner, after=None, limit=1, descending=True, purpose=None)[0][0]
    theirs = signed_in(create_app(context).test_client(), stranger)
    assert theirs.get(f"/new/job/rollout?again={job.id}").status_code == 404
    assert mine.id not in theirs.get(f"/new/job/rollout?file={mine.id}").text
    answer = send(theirs, text=None, stored=f"file:{mine.id}")
    assert (answer.status_code, "No file found" in answer.text) == (400, True)


def test_a_job_with_a_plan_is_made_where_its_recipe_has_items(client: FlaskClient, context: AppContext) -> None:
    assert "Answer 100 items first" in client.get("/new/job/rollout").text
    assert "Answer 100" not in client.get("/new/job/experiment").text
    assert send(client, plan="100").status_code == 303
    assert only_job(context).sample_rows == 100


def test_running_again_opens_the_form_as_the_job_was_made(client: FlaskClient, context: AppContext) -> None:
    fields = {"option.n": "3", "option.sampling.stop": "END", "option.system": "two\r\nlines", "job_name": "evals"}
    metadata = 'team=search\nnote=" two\\nlines"'
    assert send(client, completion_window="2h", metadata=metadata, seed="7", **fields).status_code == 303
    job = only_job(context)
    page = html.unescape(client.get(f"/new/job/rollout?again={job.id}").text)
    inputs = dict(re.findall(r'<input [^>]*?name="([^"]+)"[^>]*?value="([^"]*)"', page))
    areas = dict(re.findall(r'<textarea[^>]* name="([^"]+)"[^>]*>\n(.*?)</textarea>', page, re.DOTALL))
    chosen = dict(
        re.findall(
            r'<select[^>]* name="([^"]+)"(?:(?!</select>).)*?<option(?: value="([^"]*)")? selected', page, re.DOTALL
        )
    )
    sent = {**inputs, **areas, "stored": chosen["stored"], "option.model": "echo", "csrf": csrf_of(client)}
    assert client.post("/new/job/rollout", data=sent).status_code == 303
    with context.database.read() as session:
        first, second = session.query(Job).order_by(Job.created_at, Job.id).all()
    assert first.options == second.options
    assert first.work_sha256 == second.work_sha256
    for name in ("name", "completion_window", "request_metadata", "seed", "input_file_id"):
        assert getattr(first, name) == getattr(second, name)


def test_a_job_is_started_in_a_browser_runs_again_and_its_pages_are_accessible(
    visit: Open, stack: RunningStack, tmp_path: Path
) -> None:
    window = visit()
    page = window.sign_in(stack.key, "/new/job/rollout")
    window.check_accessibility()
    table = tmp_path / "mine.jsonl"
    table.write_text("".join(json.dumps({"prompt": f"say {number}"}) + "\n" for number in range(5)))
    page.get_by_label("File", exact=True).set_input_files(table)
    page.get_by_label("model", exact=False).first.select_option("echo")
    expect(page.locator("#shown")).to_contain_text("Row 1: Data source 'unknown' has no reward")
    page.locator("details", has=page.locator("[data-into='option.reward']")).locator("summary").click()
    page.get_by_role("button", name="exact", exact=True).click()
    expect(page.locator("[id='option.reward']")).to_have_value("exact")
    page.locator("[id='option.ground_truth']").fill("prompt")
    expect(page.locator("#shown dl")).to_contain_text(re.compile(r"Items\s*5"))
    expect(page.locator("#shown")).to_contain_text("say 0")
    window.check_accessibility()
    page.locator("[id='option.ground_truth']").press("Control+Enter")
    page.wait_for_url("**/jobs/job_*")
    job = stack.wait_for_job(stack.client.get(f"/jobs/{page.url.rpartition('/')[2]}", cast_to=object))  # type: ignore[arg-type]
    assert (job["status"], job["request_counts"]["completed"]) == ("completed", 5)
    window.leave(f"/jobs/{job['id']}")
    page.get_by_role("link", name="Run again…").click()
    expect(page.locator("[id='option.reward']")).to_have_value("exact")
    expect(page.get_by_label("Or a stored file")).to_have_value(f"file:{job['input_file_id']}")
    expect(page.locator("#shown")).to_contain_text("It is identical to")
    window.check_phone_in_the_dark()
    page.get_by_role("button", name="Start job").click()
    page.wait_for_url(re.compile(f"/jobs/job_(?!{job['id'][4:]})"))


def test_a_job_over_a_table_of_images_runs_from_the_browser_and_from_the_terminal(
    visit: Open, stack: RunningStack, tmp_path: Path
) -> None:
    photos = []
    for colour in ("red", "blue"):
        content = io.BytesIO()
        Image.new("RGB", (16, 16), colour).save(content, "PNG")
        photos.append(content.getvalue())
    pq.write_table(pa.table({"photo": photos, "colour": ["red", "blue"]}), tmp_path / "photos.parquet")
    window = visit()
    page = window.sign_in(stack.key, "/new/job/batch")
    page.get_by_label("File", exact=True).set_input_files(tmp_path / "photos.parquet")
    page.locator("[id='option.model']").select_option("echo")
    page.locator("[id='option.template']").fill("{photo:image}Which colour?")
    expect(page.locator("#shown .ask img")).to_have_js_property("naturalWidth", 16)
    page.get_by_role("button", name="Start job").click()
    page.wait_for_url("**/jobs/job_*")
    made = stack.wait_for_job(stack.client.get(f"/jobs/{page.url.rpartition('/')[2]}", cast_to=object))  # type: ignore[arg-type]
    options = ["--model", "echo", "--template", "{photo:image}Which colour?", "--data", stack.data, "--json"]
    run = batchyard("batch", "photos.parquet", *options, folder=tmp_path, **stack.environment)
    assert run.returncode == 0, run.stderr
    again = json.loads(run.stdout)
    assert made["request_counts"] == again["request_counts"]
    assert made["batchyard"]["work_sha256"] == again["batchyard"]["work_sha256"]
    window.leave(f"/jobs/{made['id']}/items/2")
    for place in (".turn img", "section:last-of-type img"):  # its prompt, and its row
        expect(page.locator(place).first).to_have_js_property("naturalWidth", 16)
    expect(page.locator(".turn .passage")).to_contain_text("Which colour?")
    window.check_accessibility()


def test_the_form_of_a_job_works_without_scripts(visit: Open, stack: RunningStack) -> None:
    page = visit(java_script_enabled=False).sign_in(stack.key, "/begin")
    page.get_by_role("link", name="Try until it is right").click()
    page.locator("[id='option.tiers']").fill("echo")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#shown")).to_contain_text(re.compile(r"Requests, answer\s*40 to 160"))
    expect(page.locator("#shown")).to_contain_text("975 + 3 =")
    page.get_by_role("button", name="Start job").click()
    page.wait_for_url("**/jobs/job_*")


def test_few_keys_lead_from_the_top_of_a_form_to_its_button(visit: Open, stack: RunningStack) -> None:
    page = visit().sign_in(stack.key, "/new")
    expect(page.locator("#submit")).to_be_visible()
    for path, most in (("/new", 18), ("/new/job/refine", 18), ("/new/job/rollout", 18)):
        page.goto(path)
        page.locator("#main").evaluate("main => { main.tabIndex = -1; main.focus(); }")
        stops = []
        while not stops or stops[-1] != "submit":
            page.keyboard.press("Tab")
            stops.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
            assert len(stops) <= most, stops
        page.goto(path)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # to the content
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # to the button
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
        assert focused in ("submit", "Preview"), focused
