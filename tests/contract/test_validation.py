"""Validation errors as in contract.md's table: every bad line is reported by its physical number."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.support.stacks import RunningStack, a_chat

GOOD = a_chat("good", "hello")


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in a_chat("a", "hello").items() if key != name}


def body(**changes: Any) -> dict[str, Any]:
    line = a_chat("a", "hello")
    line["body"] = {key: value for key, value in (line["body"] | changes).items() if value is not ...}
    return line


TABLE: list[tuple[str, Any, str, str | None]] = [
    ("no JSON", b"{nope}", "invalid_json_line", None),
    ("not UTF-8", b'{"custom_id": "\xff"}', "invalid_json_line", None),
    ("a list", [1], "invalid_json_line", None),
    ("a string", "text", "invalid_json_line", None),
    ("NaN", b'{"custom_id": NaN}', "invalid_json_line", None),
    ("Infinity", b'{"custom_id": Infinity}', "invalid_json_line", None),
    ("NUL", b'{"custom_id": "\x00"}', "invalid_json_line", None),
    ("a lone surrogate", b'{"custom_id": "\\ud800"}', "invalid_json_line", None),
    ("a key twice", b'{"custom_id": "a", "custom_id": "b"}', "invalid_json_line", None),
    ("nested 10,000 deep", b'{"body": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "invalid_json_line", None),
    ("10 MB of noise", b"x" * 10_000_000, "invalid_json_line", None),
    ("no custom_id", without("custom_id"), "missing_required_parameter", "custom_id"),
    ("no method", without("method"), "missing_required_parameter", "method"),
    ("no url", without("url"), "missing_required_parameter", "url"),
    ("no body", without("body"), "missing_required_parameter", "body"),
    ("another url", a_chat("a", "x") | {"url": "/v1/embeddings"}, "invalid_url", "url"),
    ("another method", a_chat("a", "x") | {"method": "GET"}, "invalid_method", "method"),
    ("no model", body(model=...), "invalid_request", "body.model"),
    ("no messages", body(messages=...), "invalid_request", "body.messages"),
    ("no message", body(messages=[]), "invalid_request", "body.messages"),
    ("a model we do not serve", body(model="gpt-9"), "model_not_found", "body.model"),
    ("streaming", body(stream=True), "streaming_unsupported", "body.stream"),
    ("a custom_id used before", GOOD, "duplicate_custom_id", "custom_id"),
    ("tools of an engine without them", body(model="nano", tools=[{"type": "function", "function": {"name": "f"}}]),
     "unsupported_parameter", "body.tools"),
    ("a temperature that is a text", body(temperature="hot"), "invalid_request", "body.temperature"),
]  # fmt: skip


@pytest.fixture(scope="module")
def refused(stack: RunningStack) -> Any:
    """A batch of every line of the table, after a valid line and a blank one."""
    raw = [json.dumps(GOOD).encode(), b""]
    for number, (_, line, _, _) in enumerate(TABLE):
        if isinstance(line, dict) and line.get("custom_id") == "a":
            line = line | {"custom_id": f"id-{number}"}
        raw.append(line if isinstance(line, bytes) else json.dumps(line).encode())
    return stack.wait(stack.submit(b"\r\n".join(raw)))


@pytest.mark.parametrize("number", range(len(TABLE)), ids=[name for name, *_ in TABLE])
def test_a_bad_line_is_one_bounded_error_with_its_code_and_number(refused: Any, number: int) -> None:
    _, _, code, param = TABLE[number]
    (error,) = [error for error in refused.errors.data if error.line == number + 3]
    assert (error.code, error.param) == (code, param)
    assert 0 < len(error.message) < 500


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("another url", "The URL provided for this request does not match the batch endpoint."),
        ("streaming", "Streaming is not supported in batches"),
        ("a model we do not serve", "The provided model 'gpt-9' is not supported here; served: "),
    ],
)
def test_messages_have_openais_words(refused: Any, name: str, message: str) -> None:
    number = [kind for kind, *_ in TABLE].index(name)
    (error,) = [error for error in refused.errors.data if error.line == number + 3]
    assert error.message.startswith(message)


def test_nothing_but_the_bad_lines_is_reported_and_nothing_runs(refused: Any) -> None:
    assert refused.status == "failed"
    assert len(refused.errors.data) == len(TABLE)
    assert (refused.output_file_id, refused.error_file_id, refused.in_progress_at) == (None, None, None)
    assert refused.request_counts.to_dict() == {"total": 0, "completed": 0, "failed": 0}
    assert refused.failed_at is not None


def only(batch: Any) -> tuple[str, int | None]:
    (error,) = batch.errors.data
    return error.code, error.line


def test_a_byte_order_mark_of_windows_is_skipped_from_the_file_to_the_scores(stack: RunningStack) -> None:
    body = GOOD["body"] | {"metadata": {"expected": "a"}}
    lines = [json.dumps(GOOD | {"custom_id": name, "body": body}).encode() for name in ("a", "b")]
    file = b"\xef\xbb\xbf" + b"\r\n".join(lines)
    batch = stack.wait(stack.submit(file, extra_body={"post_process": [{"step": "score"}, {"step": "parquet"}]}))
    assert (batch.status, batch.request_counts.completed) == ("completed", 2)
    assert [step["status"] for step in batch.batchyard["post_process"]] == ["completed", "completed"]
    assert batch.batchyard["post_process"][0]["summary"]["total"] == 2


def test_a_file_in_utf_16_is_told_how_to_save_it(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit(json.dumps(GOOD).encode("utf-16")))
    assert batch.errors.data[0].line == 1
    assert "the file is UTF-16; save it as UTF-8" in batch.errors.data[0].message


@pytest.mark.parametrize("content", [b"", b"\n\n \r\n"])
def test_nothing_but_blank_lines_is_an_empty_file(stack: RunningStack, content: bytes) -> None:
    assert only(stack.wait(stack.submit(content))) == ("empty_file", None)


def test_blank_lines_and_crlf_are_accepted(stack: RunningStack) -> None:
    lines = [json.dumps(a_chat(f"id-{number}", "x")) for number in range(3)]
    batch = stack.wait(stack.submit("\r\n\r\n" + "\r\n\r\n".join(lines) + "\r\n"))
    assert (batch.status, batch.request_counts.total) == ("completed", 3)


def test_a_thousand_errors_are_listed_and_the_rest_is_counted(stack: RunningStack) -> None:
    batch = stack.wait(stack.submit("nope\n" * 1500))
    assert len(batch.errors.data) == 1001
    last = batch.errors.data[-1]
    assert (last.code, last.line) == ("too_many_errors", None)
    assert "1500" in last.message.replace(",", "")


@pytest.fixture(scope="module")
def skipping(stack: RunningStack) -> Any:
    """An ended batch that has skipped lines: valid ones at 1, 4 and 6, of which that at 6 fails."""
    failing = [a_chat(f"f{number}", "x", model="failing") for number in range(3)]
    lines = [
        json.dumps(a_chat("a", "hello", metadata={"expected": "x"})),
        "{nope}",
        json.dumps(a_chat("nan", "hello", temperature=float("nan"))),
        json.dumps(a_chat("b", "hello")),
        json.dumps(a_chat("b", "hello")),
        *map(json.dumps, failing),
    ]
    steps = [{"step": "score"}, {"step": "parquet"}]
    return stack.wait(stack.submit("\n".join(lines), extra_body={"on_invalid": "skip", "post_process": steps}))


def test_lines_that_cannot_be_run_are_skipped_where_that_is_asked_for(stack: RunningStack, skipping: Any) -> None:
    assert (skipping.status, skipping.errors, skipping.batchyard["on_invalid"]) == ("completed", None, "skip")
    errors, output = stack.lines(skipping.error_file_id), stack.lines(skipping.output_file_id)
    counts = skipping.request_counts
    assert (counts.total, counts.completed, counts.failed) == (8, len(output), len(errors))
    invalid = [line for line in errors if "line" in (line["error"] or {})]
    assert [(line["custom_id"], line["error"]["line"], line["error"]["code"]) for line in invalid] == [
        (None, 2, "invalid_json_line"),
        ("nan", 3, "invalid_json_line"),
        ("b", 5, "duplicate_custom_id"),
    ]
    assert errors[:3] == invalid
    assert "NaN" in invalid[1]["error"]["message"]
    assert [step["status"] for step in skipping.batchyard["post_process"]] == ["completed", "completed"]


def test_a_retry_of_a_batch_leaves_the_lines_out_that_it_has_skipped(stack: RunningStack, skipping: Any) -> None:
    failed = [line["custom_id"] for line in stack.lines(skipping.error_file_id) if line["response"]]
    assert failed
    answer = stack.client.post(f"/batches/{skipping.id}/retry", cast_to=object, body={})
    new = stack.wait(stack.client.batches.retrieve(answer["id"]))
    source = stack.client.files.content(new.input_file_id).content.splitlines()
    assert [json.loads(line)["custom_id"] for line in source] == failed
    assert new.batchyard["on_invalid"] == "skip"


def test_a_retry_of_nothing_but_skipped_lines_is_refused(stack: RunningStack) -> None:
    source = json.dumps(a_chat("a", "hello")) + "\n{nope}"
    batch = stack.wait(stack.submit(source, extra_body={"on_invalid": "skip"}))
    with pytest.raises(openai.ConflictError, match="correct the lines that the error file names"):
        stack.client.post(f"/batches/{batch.id}/retry", cast_to=object, body={})


def test_another_word_for_invalid_lines_is_refused(stack: RunningStack) -> None:
    with pytest.raises(openai.BadRequestError, match="on_invalid"):
        stack.submit([a_chat("a", "hello")], extra_body={"on_invalid": "ignore"})
