"""POST /start without a worker: which requests are made of prompts, what is refused, and what a job is made of."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flask.testing import FlaskClient

from batchyard.models import ModelSpec
from tasks.context import AppContext
from tests.support.messages import SentMessages
from tests.support.stacks import ROOT, a_chat
from tests.support.webapps import client_of, context_in

pytestmark = pytest.mark.usefixtures("sent")

TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> AppContext:
    """A context that all tests here share: each looks at what it has started itself."""
    context = context_in(tmp_path_factory.mktemp("start"), redis_url="redis://127.0.0.1:1/0")
    context.models["vectors"] = ModelSpec(name="vectors", engine="echo", endpoints=("/v1/embeddings",))
    context.models["nano"] = ModelSpec(name="nano", engine="transformers", source=str(ROOT / "examples/models/nano"))
    return context


@pytest.fixture(scope="module")
def client(context: AppContext) -> FlaskClient:
    """A client of the web app alone, with four models."""
    return client_of(context)


def send(client: FlaskClient, name: str, content: bytes, **fields: str) -> Any:
    """Send a file as a form does."""
    form = fields | {"file": (io.BytesIO(content), name)}
    return client.post("/start", data=form, content_type="multipart/form-data")


def content_of(client: FlaskClient, answer: Any) -> bytes:
    """The file of requests of a started batch."""
    assert answer.status_code == 202, answer.text
    return bytes(client.get(f"/v1/files/{answer.get_json()['file_id']}/content").data)


def requests(client: FlaskClient, answer: Any) -> list[dict[str, Any]]:
    """The request lines of a started batch."""
    return [json.loads(line) for line in content_of(client, answer).split(b"\n") if line]


def refusal(answer: Any) -> dict[str, Any]:
    """The error of a request that was refused."""
    assert answer.status_code == 400, answer.text
    return dict(answer.get_json()["error"])


@pytest.mark.parametrize(
    ("name", "content", "fields", "prompts"),
    [
        ("a.txt", "eins\n\nzwei", {}, ["eins", "zwei"]),
        ("a.txt", "\ufeffü\n", {}, ["ü"]),
        ("a.csv", 'id,prompt\n1,"a, b"\n2,"c\nd"\n', {}, ["a, b", "c\nd"]),
        ("a.csv", "question\nwhy?\n", {}, ["why?"]),
        ("a.tsv", "question\tn\nwhy?\t2\n", {"template": "{{{question}}} {n}"}, ["{why?} 2"]),
        ("a.csv", "country\nNA\n", {}, ["NA"]),
        ("a.ndjson", '{"n": 1.0, "tags": ["a", null]}\n', {"template": "{n} {tags}"}, ['1 ["a", null]']),
        ("a.csv", "city,n\nRome,2\n", {"template": "{n} days in {city}"}, ["2 days in Rome"]),
        ("a.jsonl", '"x"\n{"prompt": "y"}\n', {}, ["x", "y"]),
        ("a.jsonl", '{"city": "Rome"}\n', {"template": "Go to {city}"}, ["Go to Rome"]),
        ("a.JSONL", '{"messages": [{"role": "user", "content": "z"}]}', {}, ["z"]),
    ],
)
def test_a_file_of_prompts_becomes_a_request_for_each(
    client: FlaskClient, name: str, content: str, fields: dict[str, str], prompts: list[str]
) -> None:
    answer = send(client, name, content.encode(), model="echo", **fields)
    assert [line["body"]["messages"][0]["content"] for line in requests(client, answer)] == prompts


def parquet(**columns: list[Any]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "fields", "prompts"),
    [
        ("a.prompts", b"\n\xc3\xbc\n\nb\n---\n---\r\nc --- d\r\n --- \n", {}, ["\u00fc\n\nb", "c --- d\n --- "]),
        ("a.parquet", parquet(prompt=["x", "y"], n=[1, None]), {}, ["x", "y"]),
        ("a.parquet", parquet(n=[1, 2], m=[3.5, 4]), {"template": "{n} and {m}"}, ["1 and 3.5", "2 and 4"]),
        ("a.csv.gz", gzip.compress(b"prompt\n1\n", mtime=0) + gzip.compress(b"2\n", mtime=0), {}, ["1", "2"]),
        ("a.txt.zst", pa.compress(b"one\ntwo\n", "zstd", asbytes=True), {}, ["one", "two"]),
    ],
)
def test_prompts_of_several_lines_parquet_and_compressed_files_become_requests(
    client: FlaskClient, name: str, content: bytes, fields: dict[str, str], prompts: list[str]
) -> None:
    answer = send(client, name, content, model="echo", **fields)
    assert [line["body"]["messages"][0]["content"] for line in requests(client, answer)] == prompts
    assert client.get(f"/v1/files/{answer.get_json()['file_id']}").get_json()["filename"] == "a.jsonl"


GENRES = [("x", "sad", "y"), ("x", "gay", "z"), ("x", "sad", "u")]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_all_columns_of_a_table_stand_in_each_prompt_in_the_order_that_a_dry_run_tells(
    client: FlaskClient, suffix: str
) -> None:
    names = ("kind", "genre", "text", "custom_id")
    rows = [dict(zip(names, (*row, f"r{number}"), strict=True)) for number, row in enumerate(GENRES)]
    content = {
        "csv": "\n".join(",".join(row) for row in (names, *(row.values() for row in rows))).encode(),
        "jsonl": "\n".join(json.dumps(row) for row in rows).encode(),
        "parquet": parquet(**{name: [row[name] for row in rows] for name in names}),
    }[suffix]
    fields = {"model": "echo", "template": "Judge.\n{*}\n{kind}"}
    form = fields | {"file": (io.BytesIO(content), f"a.{suffix}")}
    outlook = client.post("/start?dry_run=true", data=form, content_type="multipart/form-data").get_json()
    assert outlook["columns"] == ["genre", "text"]
    answer = send(client, f"a.{suffix}", content, **fields)
    assert answer.get_json()["columns"] == outlook["columns"]
    lines = requests(client, answer)
    assert [line["custom_id"] for line in lines] == ["r0", "r1", "r2"]
    prompts = [line["body"]["messages"][0]["content"] for line in lines]
    assert prompts == [f"Judge.\ngenre: {genre}\ntext: {text}\nx" for _, genre, text in GENRES]


def test_lines_with_other_fields_have_those_of_all_lines(client: FlaskClient) -> None:
    content = b'{"a": "x"}\n{"a": "x", "b": [1]}\n{"b": null}\n'
    answer = send(client, "a.jsonl", content, model="echo", template="{*}", on_invalid="skip")
    first, second, third = requests(client, answer)
    assert answer.get_json()["columns"] == ["b", "a"]
    assert [line["body"]["messages"][0]["content"] for line in (first, second)] == ["b:\na: x", "b: [1]\na: x"]
    assert third["refused"]["message"] == "Line 3: all columns are empty."


def test_the_form_of_answers_reaches_the_requests_or_is_refused(client: FlaskClient) -> None:
    started = client.post("/start", data={"model": "nano", "prompts": "a", "response_format": '{"type": "text"}'})
    assert requests(client, started)[0]["body"]["response_format"] == {"type": "text"}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
    refused = client.post("/start", json={"model": "nano", "prompts": ["a"], "response_format": form})
    assert refusal(refused)["param"] == "response_format"


def test_a_file_of_whole_requests_runs_as_it_is(client: FlaskClient) -> None:
    content = json.dumps(a_chat("mine", "hello")).encode() + b"\n"
    answer = send(client, "in.jsonl", content)
    assert content_of(client, answer) == content
    assert refusal(send(client, "in.jsonl", content, model="echo"))["param"] == "model"


def test_completions_and_embeddings_start_too(client: FlaskClient) -> None:
    started = client.post("/start", json={"model": "echo", "prompts": ["a"], "endpoint": "/v1/completions"})
    assert requests(client, started)[0]["body"] == {"model": "echo", "prompt": "a"}
    started = client.post("/start", json={"model": "vectors", "prompts": ["a"], "endpoint": "/v1/embeddings"})
    assert requests(client, started)[0]["body"] == {"model": "vectors", "input": "a"}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"prompts": ["a"]}, "missing_required_parameter", "model"),
        ({"model": "echo"}, "missing_required_parameter", "prompts"),
        ({"model": "echo", "prompts": []}, "empty_file", "prompts"),
        ({"model": "gpt-9", "prompts": ["a"]}, "model_not_found", "model"),
        ({"model": "echo", "prompts": ["a"], "temperature": "hot"}, "invalid_value", "temperature"),
        ({"model": "echo", "prompts": ["a"], "sampling": {"temperature": "hot"}}, "invalid_request", "temperature"),
        ({"model": "nano", "prompts": ["a"], "sampling": {"tools": [TOOL]}}, "unsupported_parameter", "tools"),
        ({"model": "echo", "prompts": ["a"], "seed": 1, "sampling": {"seed": 2}}, "invalid_value", "seed"),
        ({"model": "echo", "prompts": ["a"], "completion_window": "400d"}, "invalid_value", "completion_window"),
        ({"model": "echo", "prompts": ["a"], "window": "24h"}, "unknown_parameter", "window"),
        ({"model": "echo", "prompts": ["a"], "post_process": [{"step": "x"}]}, "invalid_value", "post_process.0"),
    ],
)
def test_what_cannot_run_is_refused_at_once(client: FlaskClient, body: dict[str, Any], code: str, param: str) -> None:
    error = refusal(client.post("/start", json=body))
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("a.pdf", b"x", {}, ".csv"),
        ("a.csv", b"a,b\n1,2\n", {}, "no column 'prompt', but a, b"),
        ("a.csv", b'prompt\n"open', {}, "not valid CSV after line 2"),
        ("a.csv", b"prompt,b\nx\n", {}, "Line 2 has not 2 columns"),
        ("a.csv", b"a,b\n1,2\n", {"template": "{c}"}, "no column 'c'; available: a, b"),
        ("a.txt", b"x", {"template": "{c}"}, "A template names"),
        ("a.txt", b"x\xff", {}, "not UTF-8"),
        ("a.txt", b"\xff\xfe\xff", {}, "a byte order mark of UTF-16"),
        ("a.jsonl", b'"a"\n{nope', {}, "Line 2 is not valid JSON"),
        ("a.jsonl", b'"a"\n{"prompt": NaN}', {}, "Line 2 has NaN at 'prompt'. NaN is not JSON; write null"),
        ("a.jsonl", b'"a"\n[1]', {}, "Line 2 is neither an object nor a string"),
        ("a.jsonl", b'{"text": "x"}', {}, "Line 1: column prompt is missing, and so is 'messages'; available: text"),
        ("a.csv", b"a\nx\n", {"template": "{a"}, "The template has a '{' without '}' at character 1; close it"),
        ("a.csv", b"a\nx\n\ny\n", {}, "Line 3: column a is empty"),
        ("a.csv", b"a\nx\n\n", {"template": "{*}"}, "Line 3: all columns are empty"),
        ("a.csv", b"a\nx\n", {"template": "{*} {*}"}, "The template has a second {*}"),
        ("a.txt", b"x", {"template": "{*}"}, "A template names"),
        ("a.csv", b"a,a\nx,y\n", {"template": "{a}"}, "two columns have one name: a, a"),
        ("a.tsv", b"a\tb\nx\tNA\n", {"template": "{b}", "null_values": '["NA"]'}, "Line 2: column b is empty"),
        ("a.txt", b"\n \n", {}, "no prompts"),
        ("a.csv", b"", {}, "no prompts"),
        ("a.parquet.gz", b"x", {}, "Cannot tell"),
        ("a.csv.gz", b"prompt\nx\n", {}, "cannot be decompressed"),
        ("a.parquet", b"PAR1", {}, "not Parquet"),
        ("a.parquet", parquet(a=["x"], b=["y"]), {}, "no column 'prompt', but a, b"),
        ("a.parquet", parquet(a=["x", None]), {"template": "{a}"}, "Row 2: column a is empty"),
        ("a.parquet", parquet(a=["x"]), {"template": "{c}"}, "no column 'c'; available: a"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_by_its_line(
    client: FlaskClient, name: str, content: bytes, fields: dict[str, str], message: str
) -> None:
    assert message in refusal(send(client, name, content, model="echo", **fields))["message"]


JOB = {"recipe": "batch", "options": {"model": "echo"}, "prompts": ["one", "two\nlines"]}


def test_with_a_recipe_the_prompts_are_the_rows_of_a_job(client: FlaskClient, sent: SentMessages) -> None:
    answer = client.post("/start", json=JOB | {"completion_window": "2h", "metadata": {"team": "a"}}, buffered=True)
    started = answer.get_json()
    assert (answer.status_code, started["batch_id"], sent.ids("validate_job")) == (202, None, [started["job_id"]])
    job = client.get(started["status_url"]).get_json()
    assert (job["id"], job["recipe"], job["completion_window"]) == (started["job_id"], "batch", "2h")
    assert job["metadata"] == {"team": "a"}
    assert requests(client, answer) == [{"prompt": "one"}, {"prompt": "two\nlines"}]


def test_the_rows_of_a_job_may_be_a_file_as_it_is(client: FlaskClient) -> None:
    content = b"prompt,n\nWhy?,1\n"
    form = {"recipe": "batch", "options": json.dumps(JOB["options"])}
    assert content_of(client, send(client, "rows.csv", content, **form)) == content


@pytest.mark.parametrize(
    ("changed", "code", "param"),
    [
        ({"model": "echo"}, "invalid_value", "model"),
        ({"temperature": 0.5}, "invalid_value", "temperature"),
        ({"priority": "high"}, "invalid_value", "priority"),
        ({"prompts": [" ", ""]}, "empty_file", "prompts"),
        ({"options": {"model": "gpt-9"}}, "model_not_found", "options.model"),
        ({"recipe": "debates"}, "recipe_not_found", "recipe"),
        ({"recipe": None}, "missing_required_parameter", "recipe"),
    ],
)
def test_a_job_is_refused_what_its_recipe_decides(
    client: FlaskClient, sent: SentMessages, changed: dict[str, Any], code: str, param: str
) -> None:
    error = refusal(client.post("/start", json=JOB | changed))
    assert (error["code"], error["param"], sent.calls) == (code, param, [])


def test_a_recipes_dry_run_is_elsewhere(client: FlaskClient) -> None:
    error = refusal(client.post("/start?dry_run=true", json=JOB))
    assert error["param"] == "dry_run" and "POST /v1/jobs" in error["message"]


def test_prompts_and_a_file_are_one_too_many(client: FlaskClient) -> None:
    error = refusal(send(client, "a.txt", b"one", model="echo", prompts="two"))
    assert (error["code"], error["param"]) == ("missing_required_parameter", "prompts")


def test_another_projects_key_sees_nothing_of_what_was_started(client: FlaskClient, context: AppContext) -> None:
    started = client.post("/start", json={"model": "echo", "prompts": ["one"]}).get_json()
    other = client_of(context, project="other")
    assert other.get(started["status_url"]).status_code == 404
    assert other.get(f"/v1/files/{started['file_id']}/content").status_code == 404
