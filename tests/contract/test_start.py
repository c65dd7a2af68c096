"""POST /start: prompts become a batch that runs with the options sent."""

from __future__ import annotations

import gzip
import io
import json
import time
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.contract.conftest import refusal
from tests.support.stacks import RunningStack, a_chat

TOOL = {"type": "function", "function": {"name": "f"}}


def requests(stack: RunningStack, answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the request lines of a started batch."""
    assert answer.status_code == 202, answer.text
    return stack.lines(answer.json()["file_id"])


def test_a_list_of_prompts_runs_with_what_it_was_given(stack: RunningStack, http: httpx.Client) -> None:
    body = {
        "model": "echo",
        "prompts": ["one", "two\nlines", " "],
        "system": "Be brief.",
        "temperature": 0.5,
        "sampling": {"seed": 7, "max_tokens": 9},
        "completion_window": "2h",
        "metadata": {"team": "a"},
        "post_process": [{"step": "parquet"}],
    }
    answer = http.post("/start", json=body)
    lines = requests(stack, answer)
    system = {"role": "system", "content": "Be brief."}
    assert [line["body"]["messages"] for line in lines] == [
        [system, {"role": "user", "content": "one"}],
        [system, {"role": "user", "content": "two\nlines"}],
    ]
    for line in lines:
        body = {key: value for key, value in line["body"].items() if key != "messages"}
        assert body == {"model": "echo", "temperature": 0.5, "seed": 7, "max_tokens": 9}
    started = answer.json()
    assert started["job_id"] == started["batch_id"]
    batch = http.get(started["status_url"]).json()
    assert (batch["id"], batch["completion_window"], batch["metadata"]) == (started["batch_id"], "2h", {"team": "a"})
    ended = stack.wait(stack.client.batches.retrieve(started["batch_id"]))
    answers = [
        line["response"]["body"]["choices"][0]["message"]["content"] for line in stack.lines(ended.output_file_id)
    ]
    assert (ended.status, answers) == ("completed", ["one", "two\nlines"])
    assert "results.parquet" in [artifact["name"] for artifact in ended.batchyard["artifacts"]]


def test_a_form_with_one_prompt_a_line_runs(stack: RunningStack, http: httpx.Client) -> None:
    answer = http.post("/start", data={"model": "echo", "prompts": "one\r\n\r\ntwo\r\n", "max_tokens": "5"})
    lines = requests(stack, answer)
    assert [line["body"]["messages"][0]["content"] for line in lines] == ["one", "two"]
    assert [line["custom_id"] for line in lines] == ["prompt-1", "prompt-3"]
    assert {line["body"]["max_tokens"] for line in lines} == {5}


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
def test_a_file_of_prompts_runs(
    stack: RunningStack, http: httpx.Client, name: str, content: str, fields: dict[str, str], prompts: list[str]
) -> None:
    answer = http.post("/start", data={"model": "echo"} | fields, files={"file": (name, content.encode())})
    assert [line["body"]["messages"][0]["content"] for line in requests(stack, answer)] == prompts


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
def test_prompts_of_several_lines_parquet_and_compressed_files_run(
    stack: RunningStack, http: httpx.Client, name: str, content: bytes, fields: dict[str, str], prompts: list[str]
) -> None:
    answer = http.post("/start", data={"model": "echo"} | fields, files={"file": (name, content)})
    assert [line["body"]["messages"][0]["content"] for line in requests(stack, answer)] == prompts
    assert stack.client.files.retrieve(answer.json()["file_id"]).filename == "a.jsonl"


def test_a_compressed_file_of_whole_requests_runs_as_what_it_holds(stack: RunningStack, http: httpx.Client) -> None:
    content = json.dumps(a_chat("mine", "hello")).encode() + b"\n"
    answer = http.post("/start", files={"file": ("in.jsonl.gz", gzip.compress(content))})
    assert requests(stack, answer)[0]["custom_id"] == "mine"
    assert stack.client.files.content(answer.json()["file_id"]).content == content


def test_a_dry_run_counts_and_forecasts_and_starts_nothing(stack: RunningStack, http: httpx.Client) -> None:
    stack.wait(stack.submit([a_chat("measured", "so that there is a speed")]))
    newest = stack.client.batches.list(limit=1).data[0].id
    body = {"model": "echo", "prompts": ["a", "b"], "completion_window": "2h"}
    outlook = http.post("/start?dry_run=true", json=body).json()
    assert (outlook["object"], outlook["requests"], outlook["on_time"]) == ("batch.dry_run", 2, True)
    assert outlook["eta_earliest_seconds"] <= outlook["eta_seconds"] <= outlook["eta_latest_seconds"]
    assert 7100 < outlook["due_at"] - time.time() <= 7200
    content = json.dumps(a_chat("mine", "hello", model="unmeasured")).encode() + b"\n"
    whole = http.post("/start?dry_run=true", files={"file": ("in.jsonl", content)}).json()
    assert (whole["requests"], whole["bytes"], whole["eta_seconds"], whole["on_time"]) == (1, len(content), None, None)
    refused = http.post("/start?dry_run=true", json={**body, "model": "gpt-9"})
    assert (refused.status_code, refusal(refused)["param"]) == (400, "model")
    assert stack.client.batches.list(limit=1).data[0].id == newest


def test_the_form_of_answers_reaches_the_requests_or_is_refused(stack: RunningStack, http: httpx.Client) -> None:
    started = http.post("/start", data={"model": "nano", "prompts": "a", "response_format": '{"type": "text"}'})
    assert requests(stack, started)[0]["body"]["response_format"] == {"type": "text"}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
    refused = http.post("/start", json={"model": "nano", "prompts": ["a"], "response_format": form})
    assert (refused.status_code, refusal(refused)["param"]) == (400, "response_format")


def test_a_file_of_whole_requests_runs_as_it_is(stack: RunningStack, http: httpx.Client) -> None:
    content = json.dumps(a_chat("mine", "hello")).encode() + b"\n"
    answer = http.post("/start", files={"file": ("in.jsonl", content)})
    assert stack.client.files.content(requests(stack, answer) and answer.json()["file_id"]).content == content
    refused = http.post("/start", data={"model": "other"}, files={"file": ("in.jsonl", content)})
    assert (refused.status_code, refusal(refused)["param"]) == (400, "model")


def test_completions_and_embeddings_start_too(stack: RunningStack, http: httpx.Client) -> None:
    started = http.post("/start", json={"model": "echo", "prompts": ["a"], "endpoint": "/v1/completions"})
    assert requests(stack, started)[0]["body"] == {"model": "echo", "prompt": "a"}
    started = http.post("/start", json={"model": "vectors", "prompts": ["a"], "endpoint": "/v1/embeddings"})
    assert requests(stack, started)[0]["body"] == {"model": "vectors", "input": "a"}


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
def test_what_cannot_run_is_refused_at_once(http: httpx.Client, body: dict[str, Any], code: str, param: str) -> None:
    answer = http.post("/start", json=body)
    error = refusal(answer)
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("a.pdf", b"x", {}, ".csv"),
        ("a.csv", b"a,b\n1,2\n", {}, "no column 'prompt', but a, b"),
        ("a.csv", b'prompt\n"open', {}, "not valid CSV after line 2"),
        ("a.csv", b"prompt,b\nx\n", {}, "Line 2 has not 2 columns"),
        ("a.csv", b"a,b\n1,2\n", {"template": "{c}"}, "no column 'c'; there are a, b"),
        ("a.txt", b"x", {"template": "{c}"}, "A template names"),
        ("a.txt", b"\xff\xfe\xff", {}, "not UTF-8"),
        ("a.jsonl", b'"a"\n{nope', {}, "Line 2 is not valid JSON"),
        ("a.jsonl", b'"a"\n{"prompt": NaN}', {}, "Line 2 has NaN at 'prompt'. NaN is not JSON; write null"),
        ("a.jsonl", b'"a"\n[1]', {}, "Line 2 is neither an object nor a string"),
        ("a.jsonl", b'{"text": "x"}', {}, "Line 1: column prompt is missing, and so is 'messages'; there are text"),
        ("a.csv", b"a\nx\n", {"template": "{a"}, "The template has a single '{' at character 1; double it"),
        ("a.csv", b"a\nx\n\ny\n", {}, "Line 3: column a is empty"),
        ("a.csv", b"a,a\nx,y\n", {"template": "{a}"}, "two columns have one name: a, a"),
        ("a.tsv", b"a\tb\nx\tNA\n", {"template": "{b}", "null_values": '["NA"]'}, "Line 2: column b is empty"),
        ("a.txt", b"\n \n", {}, "no prompts"),
        ("a.csv", b"", {}, "no prompts"),
        ("a.parquet.gz", b"x", {}, "Cannot tell"),
        ("a.csv.gz", b"prompt\nx\n", {}, "cannot be decompressed"),
        ("a.parquet", b"PAR1", {}, "not Parquet"),
        ("a.parquet", parquet(a=["x"], b=["y"]), {}, "no column 'prompt', but a, b"),
        ("a.parquet", parquet(a=["x", None]), {"template": "{a}"}, "Row 2: column a is empty"),
        ("a.parquet", parquet(a=["x"]), {"template": "{c}"}, "no column 'c'; there are a"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_by_its_line(
    http: httpx.Client, name: str, content: bytes, fields: dict[str, str], message: str
) -> None:
    answer = http.post("/start", data={"model": "echo"} | fields, files={"file": (name, content)})
    assert answer.status_code == 400
    assert message in refusal(answer)["message"]
