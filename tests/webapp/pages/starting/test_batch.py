"""/new: a batch of a typed, pasted or dropped input, and its preview."""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Page, expect
from werkzeug.test import TestResponse

from store import batches, files, keys, speeds
from store.records import Batch, File, Project
from store.speeds import Measurement
from tasks.context import AppContext
from tasks.intake import preview
from tests.support.stacks import RunningStack, a_chat
from tests.webapp.pages.conftest import Visit, csrf_of, signed_in
from webapp import create_app

Open = Callable[..., Visit]


def send(client: FlaskClient, path: str = "/new", fragment: bool = False, **fields: Any) -> TestResponse:
    data = {"csrf": csrf_of(client), "endpoint": "/v1/chat/completions", "model": "echo"} | fields
    headers = {"HX-Request": "true"} if fragment else {}
    return client.post(path, data=data, content_type="multipart/form-data", headers=headers)


def only_batch(context: AppContext) -> Batch:
    with context.database.read() as session:
        return session.query(Batch).one()


def lines_of(context: AppContext, batch: Batch) -> list[dict[str, Any]]:
    return [json.loads(line) for line in context.artifacts.read(batch.input_sha256).splitlines()]


def test_what_counts_as_empty_in_csv_is_said_in_the_form(client: FlaskClient) -> None:
    table = {"format": "csv", "text": "text,n\nNA,1\nnull,2\nfine,3\n", "template": "{text}"}
    refused = send(client, null_values=" NA, null", **table).get_data(as_text=True)
    assert "Line 2: column text is empty" in html.unescape(refused)
    assert send(client, **table).status_code == 303


def test_all_that_the_form_offers_reaches_the_batch(client: FlaskClient, context: AppContext) -> None:
    answer = send(
        client,
        text="one\r\n\r\ntwo\r\n",
        system="Be brief.",
        temperature="0.5",
        top_p="0.9",
        max_tokens="9",
        seed="7",
        stop='["END"]',
        completion_window="2h",
        metadata="team=search\r\n\r\nnote = a=b\u2028c",
        **{"step.score": "1", "step.score.method": "numeric", "step.parquet": "1"},
    )
    batch = only_batch(context)
    assert (answer.status_code, answer.location) == (303, f"/batches/{batch.id}")
    assert (batch.completion_window, batch.request_metadata) == ("2h", {"team": "search", "note": "a=b\u2028c"})
    assert batch.post_process == [{"step": "parquet"}, {"step": "score", "method": "numeric"}]
    first, second = lines_of(context, batch)
    assert [first["custom_id"], second["custom_id"]] == ["prompt-1", "prompt-3"]
    assert first["body"]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
    ]
    sampling = {name: first["body"][name] for name in ("temperature", "top_p", "max_tokens", "seed", "stop")}
    assert sampling == {"temperature": 0.5, "top_p": 0.9, "max_tokens": 9, "seed": 7, "stop": ["END"]}


def test_parquet_compressed_files_and_prompts_of_several_lines_are_previewed_and_run(
    client: FlaskClient, context: AppContext
) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"n": range(501)}), table)
    requests = json.dumps(a_chat("mine", "hello")).encode() + b"\n"
    sent: list[tuple[dict[str, Any], list[str]]] = [
        ({"text": "one\r\ntwo\r\n---\r\nthree", "format": "prompts"}, ["one\ntwo", "three"]),
        ({"file": (table.getvalue(), "a.parquet"), "template": "Is {n} odd?"}, [f"Is {n} odd?" for n in range(501)]),
        ({"file": (gzip.compress(b"one\ntwo", mtime=0), "a.txt.gz")}, ["one", "two"]),
        ({"file": (gzip.compress(requests, mtime=0), "a.jsonl.gz"), "holds": "requests"}, ["hello"]),
    ]
    for fields, prompts in sent:

        def again(fields: dict[str, Any] = fields) -> dict[str, Any]:
            return {
                name: (io.BytesIO(value[0]), value[1]) if name == "file" else value for name, value in fields.items()
            }

        assert json.dumps(prompts[0])[1:-1] in html.unescape(
            send(client, "/new/preview", fragment=True, **again()).text
        )
        answer = send(client, **again())
        assert answer.status_code == 303, answer.text
        with context.database.read() as session:
            batch = session.get_one(Batch, answer.location.rpartition("/")[2])
        assert [line["body"]["messages"][0]["content"] for line in lines_of(context, batch)] == prompts


def look(client: FlaskClient, **fields: Any) -> str:
    """What the page shows beside the submit button, as text."""
    answer = send(client, "/new/preview", fragment=True, **fields)
    return html.unescape(" ".join(re.sub("<[^>]+>", " ", answer.text).split()))


def test_prompts_are_shown_as_people_read_them_and_their_json_is_folded(client: FlaskClient) -> None:
    page = send(client, "/new/preview", fragment=True, text="one", system="Be brief.", temperature="0.5").text
    assert re.search(r'<pre [^>]*class="text prompt"[^>]*>one</pre>', page)
    assert page.index("<details><summary>As JSON") < page.index("&#34;custom_id&#34;: &#34;prompt-1&#34;")
    assert "prompt-1 to echo , temperature 0.5 system Be brief. one" in look(
        client, text="one", system="Be brief.", temperature="0.5"
    )


def test_the_columns_of_a_table_are_named_also_before_there_is_a_template(client: FlaskClient) -> None:
    shown = look(client, text="a,b c\n1,2\n", format="csv")
    assert "Columns: a b c" in shown and "has no column 'prompt', but a, b c" in shown
    table = io.BytesIO()
    pq.write_table(pa.table({"n": [1], "<b>": ["x"]}), table)
    page = send(client, "/new/preview", fragment=True, file=(io.BytesIO(table.getvalue()), "a.parquet")).text
    assert "<code>n</code> <code>&lt;b&gt;</code>" in page
    assert "Columns: question" in look(client, text='{"question": "why?"}', format="jsonl")
    assert "Columns" not in look(client, text="one\ntwo")
    assert "Columns" not in look(client, holds="requests", text=json.dumps(a_chat("a", "x")))


def test_all_columns_are_previewed_in_the_order_that_the_batch_has(client: FlaskClient, context: AppContext) -> None:
    table = "text,genre\na,sad\nb,gay\nc,sad\n"
    form = {"format": "csv", "text": table, "template": "{*}"}
    shown = look(client, **form)
    assert "Columns of {*} : genre, text ." in shown and "genre: sad text: a" in shown
    assert send(client, **form).status_code == 303
    first, *_ = lines_of(context, only_batch(context))
    assert first["body"]["messages"][0]["content"] == "genre: sad\ntext: a"
    large = (io.BytesIO(("text,genre\n" + "a text,sad\n" * 25_000).encode()), "large.csv")
    assert "this is the order at its beginning" in look(client, file=large, template="{*}")


def test_an_example_is_an_input_and_what_is_typed_comes_before_it(client: FlaskClient, context: AppContext) -> None:
    fields = {"stored": "example:prompts.txt"}
    assert "What is 37 + 58?" in look(client, **fields)
    assert "mine" in look(client, text="mine", **fields)
    assert send(client, **fields).status_code == 303
    batch = only_batch(context)
    assert (batch.name, len(lines_of(context, batch))) == ("prompts.jsonl", 8)


def test_beside_the_button_stands_when_it_would_be_done_and_whether_that_is_in_time(
    client: FlaskClient, context: AppContext
) -> None:
    assert re.search(r"Requests 2 requests in all Done not known due \S+ \S+ UTC", look(client, text="one\ntwo"))
    measurement = Measurement(
        seconds=600, requests=600, bytes=120_000, tokens=5400, squares=150_000, in_flight=8, limit=8
    )
    with context.database.write() as session:
        for _ in range(3):
            speeds.measure(speeds.locked(session, "echo", context.models["echo"].config_sha256, "decode"), measurement)
    assert re.search(r"Done in \d+ s \(.* to .*\) in time due", look(client, text="one\ntwo", max_tokens="100"))
    slow = look(client, text="a question\n" * 8_000, max_tokens="100", completion_window="10m")
    assert re.search(r"Done in \d+ h .* too late due", slow)


@pytest.mark.long
def test_the_numbers_of_a_large_file_are_scaled_from_its_beginning(client: FlaskClient) -> None:
    content = b"a question\n" * 50_000
    head = content[: preview.HEAD_BYTES + 1]
    shown = look(client, file=(io.BytesIO(head), "large.txt"), file_bytes=str(len(content)))
    assert "Requests about 50,000 requests in all estimated from the first 256.0 KiB" in shown
    whole = look(client, file=(io.BytesIO(content), "large.txt"))
    assert "about 50,000 requests in all" in whole


def test_a_form_that_is_sent_twice_makes_one_batch(client: FlaskClient, context: AppContext) -> None:
    first, again, edited = (send(client, text=text, once="shown-once") for text in ("a", "a", "b"))
    assert first.location == again.location != edited.location
    with context.database.read() as session:
        assert session.query(Batch).count() == 2


def test_whole_requests_run_as_they_are_from_a_file_of_any_name(client: FlaskClient, context: AppContext) -> None:
    content = json.dumps(a_chat("mine", "hello")).encode() + b"\n"
    answer = send(client, holds="requests", file=(io.BytesIO(content), "requests.log"))
    assert answer.status_code == 303, answer.text
    assert context.artifacts.read(only_batch(context).input_sha256) == content


def test_a_stored_file_is_used_again(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        owner = session.query(Project).one().id
        sha256 = context.artifacts.put(json.dumps(a_chat("mine", "hello")).encode())
        options = {"filename": "<b>.jsonl", "size": 9, "sha256": sha256, "expires_after": None}
        file = files.create(session, owner, purpose="batch", **options)
    page = client.get(f"/new?file={file.id}").text
    assert "&lt;b&gt;.jsonl" in page and 'type="file"' not in page
    assert send(client, file_id=file.id).status_code == 303
    assert only_batch(context).input_file_id == file.id
    assert client.get("/new?file=file-nope").status_code == 404


@pytest.fixture
def first_run(client: FlaskClient, context: AppContext) -> Batch:
    """A batch of three prompts with a temperature, a name and a step."""
    fields = {"temperature": "0.5", "batch_name": "evals", "metadata": "team=search", "completion_window": "2h"}
    steps = {"step.score": "1", "step.score.method": "numeric"}
    assert send(client, text="one\ntwo\nthree", **fields, **steps).status_code == 303
    return only_batch(context)


def fields_of(page: str) -> dict[str, str]:
    """The fields of the form as a browser would send them."""
    inputs = re.findall(r'<input (?![^>]*type="(?:radio|checkbox)")[^>]*?name="([^"]+)"[^>]*?value="([^"]*)"', page)
    ticked = re.findall(r'<input type="checkbox" name="([^"]+)" value="1" checked', page)
    chosen = re.findall(
        r'<select[^>]* name="([^"]+)"(?:(?!</select>).)*?<option[^>]*?(?: value="([^"]*)")? selected>([^<]*)',
        page,
        re.DOTALL,
    )
    areas = re.findall(r'<textarea[^>]* name="([^"]+)"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    return (
        dict(inputs) | dict.fromkeys(ticked, "1") | {name: value or text for name, value, text in chosen} | dict(areas)
    )


def test_running_again_opens_the_form_as_the_batch_was_made(
    client: FlaskClient, context: AppContext, first_run: Batch
) -> None:
    fields = fields_of(client.get(f"/new?again={first_run.id}").text)
    assert (fields["batch_name"], fields["temperature"], fields["model"]) == ("evals", "0.5", "echo")
    assert (fields["completion_window"], fields["metadata"]) == ("2h", "team=search")
    assert (fields["step.score"], fields["step.score.method"]) == ("1", "numeric")
    again = client.post("/new", data=fields, content_type="multipart/form-data")
    assert again.status_code == 303, again.text
    with context.database.read() as session:
        batch = session.get_one(Batch, again.location.rpartition("/")[2])
    assert batch.id != first_run.id and batch.input_file_id == first_run.input_file_id
    assert (batch.name, batch.request_metadata) == ("evals", {"team": "search", "name": "evals"})
    assert batch.post_process == first_run.post_process
    assert client.get("/new?again=batch_nope").status_code == 404


def test_what_is_changed_of_the_first_request_is_changed_in_all(
    client: FlaskClient, context: AppContext, first_run: Batch
) -> None:
    fields = fields_of(client.get(f"/new?again={first_run.id}").text) | {"temperature": "", "max_tokens": "7"}
    preview_page = client.post("/new/preview", data=fields, content_type="multipart/form-data").text
    assert "&#34;max_tokens&#34;: 7" in preview_page and "temperature&#34;" not in preview_page
    again = client.post("/new", data=fields, content_type="multipart/form-data")
    with context.database.read() as session:
        batch = session.get_one(Batch, again.location.rpartition("/")[2])
    before, after = lines_of(context, first_run), lines_of(context, batch)
    assert [line["body"]["max_tokens"] for line in after] == [7, 7, 7]
    for line in (*before, *after):
        line["body"] = {name: line["body"][name] for name in ("model", "messages")}
    assert before == after


def test_a_pasted_batch_is_called_after_its_first_prompt_unless_it_has_a_name(
    client: FlaskClient, context: AppContext
) -> None:
    def name(**fields: str) -> str | None:
        location = send(client, **fields).location
        with context.database.read() as session:
            return session.get_one(Batch, location.rpartition("/")[2]).name

    assert name(text="\n  Translate  this\u2028now " + "x" * 80) == f"Translate this now {'x' * 38}..."
    assert name(text="text,lang\nhello,de\n", format="csv", template="{lang}: {text}") == "de: hello"
    assert name(text="a", batch_name="<b>mine") == "<b>mine"


@pytest.mark.parametrize(
    ("fields", "message", "field"),
    [
        ({}, "Choose a file", "text"),
        ({"text": "a", "temperature": "hot"}, "Invalid value for &#39;temperature&#39;", "temperature"),
        ({"text": "a", "model": "gone"}, "is not supported here", "model"),
        ({"text": "a", "endpoint": ""}, "endpoint", "endpoint"),
        ({"text": "a", "completion_window": "400d"}, "supported are 24h", "completion_window"),
        ({"text": "a", "completion_window": "soon"}, "completion_window", "completion_window"),
        ({"text": "a", "metadata": "team"}, "Line 1 of the metadata", "metadata"),
        ({"text": "a", "metadata": "a=1\na=2"}, "Line 2 of the metadata", "metadata"),
        ({"text": "a", "step.score": "1", "step.score.method": "luck"}, "exact", "post_process"),
        ({"text": "a", "template": "{x}"}, "A template names the columns", "template"),
        ({"text": "a,b\n1,2\n3", "format": "csv", "template": "{a}"}, "Line 3 has not 2 columns", "preview"),
        ({"text": json.dumps(a_chat("a", "b")), "format": "jsonl"}, "Whole requests name their own model", "holds"),
        ({"text": "a", "file": (io.BytesIO(b"x"), "a.txt")}, "Send either a file or a text", "file"),
        ({"file": (io.BytesIO(b"x"), "a.pdf")}, "Cannot tell from the name", "file"),
    ],
)
def test_what_cannot_run_comes_back_with_all_that_was_typed(
    client: FlaskClient, context: AppContext, fields: dict[str, Any], message: str, field: str
) -> None:
    answer = send(client, **{"system": "</textarea><b>Kept", "stop": '"kept"', **fields})
    assert answer.status_code == 400
    assert message in answer.text
    assert f'<a href="#{field}">' in answer.text
    assert f'id="{field}"' in answer.text
    assert "&lt;/textarea&gt;&lt;b&gt;Kept" in answer.text
    assert "&#34;kept&#34;" in answer.text
    assert ("has to be chosen again" in answer.text) == ("file" in fields)
    with context.database.read() as session:
        assert session.query(Batch).count() == session.query(File).count() == 0


def test_a_script_that_keeps_the_chosen_file_takes_the_advice_to_choose_it_again_away(
    visit: Open, stack: RunningStack, tmp_path: Path
) -> None:
    window = visit()
    page = window.sign_in(stack.key, "/new")
    (tmp_path / "in.jsonl").write_text("{no json\n")
    page.get_by_label("Whole requests (JSON lines)").check()
    page.get_by_label("File", exact=True).set_input_files(tmp_path / "in.jsonl")
    page.get_by_role("button", name="Submit batch").click()
    expect(page.get_by_role("alert")).to_contain_text("Everything you typed is kept.")
    expect(page.get_by_role("alert")).not_to_contain_text("chosen again")
    files = page.get_by_label("File", exact=True).evaluate("field => [...field.files].map(file => file.name)")
    assert files == ["in.jsonl"]
    window.problems.clear()  # the browser logs the 400


def test_bad_lines_are_told_by_their_number_before_anything_is_submitted(
    client: FlaskClient, context: AppContext
) -> None:
    good, wrong = json.dumps(a_chat("a", "x")), json.dumps(a_chat("b", "x", model="gone"))
    text = "\n".join([good, "", wrong, "{no json", good])
    for path in ("/new", "/new/preview"):
        answer = send(client, path, holds="requests", text=text)
        rows = answer.text.partition("<tbody>")[2].partition("</tbody>")[0]
        for line, code in ((3, "model_not_found"), (4, "invalid_json_line"), (5, "duplicate_custom_id")):
            assert f'<td class="right">{line}</td>' in rows
            assert code in rows
        assert '<td class="right">1</td>' not in rows
    with context.database.read() as session:
        assert session.query(Batch).count() == 0


def test_bad_lines_are_skipped_where_the_form_says_so(client: FlaskClient, context: AppContext) -> None:
    text = "\n".join([json.dumps(a_chat("a", "x")), "{no json"])
    previews = [
        send(client, "/new/preview", fragment=True, holds="requests", text=text, **fields).text
        for fields in ({"on_invalid": "skip"}, {})
    ]
    assert ["These lines are skipped" in page for page in previews] == [True, False]
    assert ["This would be refused.</strong> <bdi>Some lines" in page for page in previews] == [False, True]
    assert send(client, "/new", holds="requests", text=text, on_invalid="skip").status_code == 303
    with context.database.read() as session:
        assert session.query(Batch).one().on_invalid == "skip"


def test_a_line_that_makes_a_bad_request_is_told_by_its_line_in_the_input(client: FlaskClient) -> None:
    text = '"fine"\n\n{"messages": [{"role": "user"}]}\n{"prompt": "x", "custom_id": "prompt-1"}'
    page = send(client, "/new/preview", fragment=True, text=text, format="jsonl").text
    assert "<html" not in page
    assert '<td class="right">3</td>' in page
    assert "The custom_id &#39;prompt-1&#39; is used on line 1 already" in page
    assert '<td class="right">4</td>' in page


def test_without_scripts_the_preview_is_the_whole_page_with_what_was_typed(client: FlaskClient) -> None:
    page = send(client, "/new/preview", text="why?", max_tokens="33").text
    assert "<html" in page and 'value="33"' in page
    assert "&#34;max_tokens&#34;: 33" in page
    assert "1 request in all" in page


@pytest.mark.long
@pytest.mark.parametrize("ending", [".csv", ".txt", ".jsonl"])
def test_of_a_large_file_only_the_beginning_is_looked_at(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    rows = io.StringIO()
    writer = csv.writer(rows)
    writer.writerow(["prompt"])
    for number in range(30_000):
        writer.writerow([f"row {number} of many\nand on"])
    content = {
        ".csv": rows.getvalue(),
        ".txt": "a question\n" * 50_000,
        ".jsonl": '"a question"\n' * 50_000,
    }[ending].encode()
    assert len(content) > 2 * preview.HEAD_BYTES
    read = []
    head = preview.head
    monkeypatch.setattr(preview, "head", lambda source: read.append(head(source)) or read[0])
    answer = send(client, "/new/preview", fragment=True, file=(io.BytesIO(content), f"large{ending}"))
    assert "from the first 256.0 KiB" in answer.text, answer.text
    assert "wrong" not in answer.text
    assert len(read[0][0]) <= preview.HEAD_BYTES


def test_another_projects_file_is_not_there(client: FlaskClient, context: AppContext) -> None:
    with context.database.write() as session:
        stranger = keys.create(session, "other").key
        owner = session.query(Project).filter_by(name="default").one().id
        file = files.create(session, owner, filename="a", purpose="batch", size=1, sha256="0" * 64, expires_after=None)
    theirs = signed_in(create_app(context).test_client(), stranger)
    assert theirs.get(f"/new?file={file.id}").status_code == 404
    answer = send(theirs, file_id=file.id)
    assert (answer.status_code, "No file found" in answer.text) == (400, True)
    with context.database.read() as session:
        assert batches.page(session, owner, after=None, limit=1) == ([], False)


def shown(page: Page) -> list[Any]:
    return [json.loads(text) for text in page.locator("pre.request").all_text_contents()]


def test_pasted_prompts_are_shown_as_requests_and_lead_to_the_batchs_page(
    visit: Open, stack: RunningStack, other_project: openai.OpenAI
) -> None:
    window = visit()
    page = window.sign_in(stack.key, "/new")
    window.check_accessibility()
    page.get_by_label("Or type or paste it here").fill("What is 2 + 3?\n<img src=x onerror=alert(1)>\nthree\nfour")
    page.get_by_label("Model").select_option("echo")
    page.get_by_text("More options").click()
    page.get_by_label("Seed").fill("7")
    expect(page.locator("#shown")).to_contain_text("4 requests in all")
    expect(page.locator("pre.request").first).to_contain_text('"seed": 7')
    assert [request["body"]["messages"][0]["content"] for request in shown(page)] == [
        "What is 2 + 3?",
        "<img src=x onerror=alert(1)>",
        "three",
    ]
    window.check_accessibility()
    page.get_by_role("button", name="Submit batch").click()
    page.wait_for_url("**/batches/batch_*")
    batch_id = page.url.rpartition("/")[2]
    planned = stack.wait(stack.client.batches.retrieve(batch_id), until=lambda batch: batch.request_counts.total > 0)
    assert planned.request_counts.total == 4
    assert visit().sign_in(other_project.api_key, "/").content().count(batch_id) == 0


def test_a_dropped_table_is_previewed_with_its_template_and_sent(
    visit: Open, stack: RunningStack, tmp_path: Path
) -> None:
    window = visit()
    page = window.sign_in(stack.key, "/new")
    rows = "a,b\\n" + "".join(f"{number},{number + 1}\\n" for number in range(30_000))
    drop = f"""() => {{
        const files = new DataTransfer();
        files.items.add(new File(["{rows}"], "sums.csv"));
        document.body.dispatchEvent(new DragEvent("drop", {{ dataTransfer: files, bubbles: true, cancelable: true }}));
    }}"""
    page.evaluate(drop)
    expect(page.locator("#shown")).to_contain_text("has no column 'prompt', but a, b")
    page.get_by_role("button", name="b", exact=True).click()
    expect(page.get_by_label("Template")).to_have_value("{b}")
    with page.expect_request("**/new/preview") as request:
        page.get_by_label("Template").fill("What is {a} + {b}?")
    assert int(request.value.header_value("content-length") or 0) < preview.HEAD_BYTES + 10_000
    expect(page.locator("pre.request")).to_have_count(3)
    expect(page.locator("pre.request").nth(2)).to_contain_text("What is 2 + 3?")
    assert [request["body"]["messages"][0]["content"] for request in shown(page)] == [
        f"What is {number} + {number + 1}?" for number in range(3)
    ]
    page.get_by_label("Temperature").fill("hot")
    page.get_by_role("button", name="Submit batch").click()
    expect(page.get_by_role("alert")).to_contain_text("temperature")
    window.problems.clear()  # the browser logs the 400
    expect(page.get_by_label("Template")).to_have_value("What is {a} + {b}?")
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Submit batch").click()  # the file is still selected
    page.wait_for_url("**/batches/batch_*")
    batch = stack.client.batches.retrieve(page.url.rpartition("/")[2])
    stack.client.batches.cancel(batch.id)
    assert stack.client.files.retrieve(batch.input_file_id).filename == "sums.jsonl"
    content = stack.client.files.content(batch.input_file_id).text
    assert content.count("\n") == 30_000
    assert "What is 29999 + 30000?" in content


def test_the_form_works_without_scripts(visit: Open, stack: RunningStack, tmp_path: Path) -> None:
    window = visit(java_script_enabled=False)
    page = window.sign_in(stack.key, "/new")
    (tmp_path / "in.jsonl").write_text(json.dumps(a_chat("a", "hello")) + "\n{no json\n")
    page.get_by_label("Whole requests (JSON lines)").check()
    expect(page.get_by_label("Model")).to_be_hidden()
    page.get_by_label("File", exact=True).set_input_files(tmp_path / "in.jsonl")
    page.get_by_role("button", name="Submit batch").click()
    expect(page.get_by_role("row", name="2 The line is not valid JSON")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("The file in.jsonl has to be chosen again")
    window.problems.clear()
    page.get_by_label("Or type or paste it here").fill(json.dumps(a_chat("a", "hello")))
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("pre.request")).to_contain_text('"custom_id": "a"')
    page.get_by_role("button", name="Submit batch").click()
    page.wait_for_url("**/batches/batch_*")
