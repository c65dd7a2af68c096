"""Validation reports every bad line, by its physical line number, and plans every good one."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.models import ModelSpec
from store.artifacts import Artifacts
from tasks import validation
from tasks.plan import PlanWriter
from tasks.validation import Report, Validator

CHAT = "/v1/chat/completions"
MODELS = {
    "echo": ModelSpec(name="echo", engine="echo"),
    "other": ModelSpec(name="other", engine="echo"),
    "vectors": ModelSpec(name="vectors", engine="echo", endpoints=("/v1/embeddings",)),
}


def a_request(custom_id: str = "a", **changes: Any) -> dict[str, Any]:
    body = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]} | changes.pop("body", {})
    body = {key: value for key, value in body.items() if value is not ...}
    line = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes
    return {key: value for key, value in line.items() if value is not ...}


def validate(
    source: bytes, artifacts: Artifacts, *, segment_requests: int = 100, max_requests: int = 1000
) -> tuple[Report, PlanWriter, str]:
    report = Report()
    with artifacts.create() as file:
        plan = PlanWriter(file, segment_requests)
        Validator(MODELS, CHAT, max_requests).run(io.BytesIO(source), plan, report)
        plan.close()
    return report, plan, file.sha256


def errors_of(source: bytes, artifacts: Artifacts, **limits: int) -> list[tuple[str, int | None, str | None]]:
    report, _, _ = validate(source, artifacts, **limits)
    return [(error["code"], error["line"], error["param"]) for error in report.errors]


BAD_LINES: list[tuple[str, bytes | dict[str, Any], str, str | None]] = [
    ("no JSON", b"{nope}", "invalid_json_line", None),
    ("cut JSON", b'{"custom_id": "a"', "invalid_json_line", None),
    ("an array", b"[1]", "invalid_json_line", None),
    ("a number", b"5", "invalid_json_line", None),
    ("NaN", json.dumps(a_request(body={"temperature": float("nan")})).encode(), "invalid_json_line", None),
    ("Infinity", json.dumps(a_request(body={"temperature": float("inf")})).encode(), "invalid_json_line", None),
    ("bytes that are not UTF-8", b'{"custom_id": "\xff"}', "invalid_json_line", None),
    ("a lone surrogate", b'{"custom_id": "\\ud800"}', "invalid_json_line", None),
    ("a NUL byte", b'{"custom_id": "\x00"}', "invalid_json_line", None),
    ("10,000 levels", b"[" * 10_000, "invalid_json_line", None),
    ("no custom_id", a_request(custom_id=...), "missing_required_parameter", "custom_id"),
    ("no method", a_request(method=...), "missing_required_parameter", "method"),
    ("no url", a_request(url=...), "missing_required_parameter", "url"),
    ("no body", a_request() | {"body": None}, "missing_required_parameter", "body"),
    ("a custom_id that is a number", a_request(custom_id=5), "invalid_request", "custom_id"),
    ("another url", a_request(url="/v1/completions"), "invalid_url", "url"),
    ("a url that is no string", a_request(url={"a": 1}), "invalid_url", "url"),
    ("another method", a_request(method="GET"), "invalid_method", "method"),
    ("a body that is a list", a_request() | {"body": [1]}, "invalid_request", "body"),
    ("no model", a_request(body={"model": ...}), "invalid_request", "body.model"),
    ("a model that is a number", a_request(body={"model": 5}), "invalid_request", "body.model"),
    ("an unknown model", a_request(body={"model": "gpt-9"}), "model_not_found", "body.model"),
    ("a model of another endpoint", a_request(body={"model": "vectors"}), "unsupported_parameter", "url"),
    ("no messages", a_request(body={"messages": ...}), "invalid_request", "body.messages"),
    ("empty messages", a_request(body={"messages": []}), "invalid_request", "body.messages"),
    ("a message that is a string", a_request(body={"messages": ["hi"]}), "invalid_request", "body.messages[0]"),
    ("streaming", a_request(body={"stream": True}), "streaming_unsupported", "body.stream"),
]


@pytest.mark.parametrize(
    ("line", "code", "param"), [case[1:] for case in BAD_LINES], ids=[case[0] for case in BAD_LINES]
)
def test_a_bad_line_is_one_error_and_its_neighbours_are_none(
    line: bytes | dict[str, Any], code: str, param: str | None, artifacts: Artifacts
) -> None:
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    source = b"\n".join([json.dumps(a_request("before")).encode(), raw, json.dumps(a_request("after")).encode()])
    assert errors_of(source, artifacts) == [(code, 2, param)]


def test_every_bad_line_is_reported_up_to_the_cap(artifacts: Artifacts) -> None:
    report, _, _ = validate(b"nope\n" * (validation.MAX_ERRORS + 5), artifacts)
    assert len(report.errors) == validation.MAX_ERRORS
    assert report.count == validation.MAX_ERRORS + 5


def test_messages_stay_short_whatever_the_line_holds(artifacts: Artifacts) -> None:
    long = "x" * 1_000_000
    lines = [
        a_request("a", body={"model": long}),
        a_request("b", url=long),
        a_request(long),
        a_request(long),
    ]
    report, _, _ = validate("\n".join(map(json.dumps, lines)).encode(), artifacts)
    assert len(report.errors) == 3
    assert max(len(error["message"]) for error in report.errors) < 400


def test_a_repeated_custom_id_is_reported_at_each_repeat(artifacts: Artifacts) -> None:
    source = "\n".join(json.dumps(a_request(name)) for name in ("a", "b", "a", "c", "a")).encode()
    assert errors_of(source, artifacts) == [
        ("duplicate_custom_id", 3, "custom_id"),
        ("duplicate_custom_id", 5, "custom_id"),
    ]


@pytest.mark.parametrize("source", [b"", b"\n\n", b" \r\n\t\n"])
def test_a_file_without_requests_is_empty(source: bytes, artifacts: Artifacts) -> None:
    assert errors_of(source, artifacts) == [("empty_file", None, None)]


def test_a_byte_order_mark_is_named(artifacts: Artifacts) -> None:
    report, _, _ = validate(b"\xef\xbb\xbf" + json.dumps(a_request()).encode(), artifacts)
    assert [(error["code"], error["line"]) for error in report.errors] == [("invalid_json_line", 1)]
    assert "BOM" in report.errors[0]["message"]


def test_too_many_requests_are_refused(artifacts: Artifacts) -> None:
    source = "\n".join(json.dumps(a_request(str(number))) for number in range(5)).encode()
    assert errors_of(source, artifacts, max_requests=5) == []
    assert errors_of(source, artifacts, max_requests=4) == [("too_many_tasks", 5, None)]


def test_a_line_longer_than_the_limit_is_one_error(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MAX_LINE_BYTES", 1000)
    long = json.dumps(a_request("long", body={"user": "x" * 5000})).encode()
    source = b"\n".join([json.dumps(a_request("a")).encode(), long, json.dumps(a_request("b")).encode()])
    assert errors_of(source, artifacts) == [("invalid_json_line", 2, None)]


def test_blank_lines_are_skipped_but_counted_and_crlf_is_fine(artifacts: Artifacts) -> None:
    source = b"\r\n\n" + json.dumps(a_request("a")).encode() + b"\r\n\r\n" + json.dumps(a_request("b")).encode()
    report, _, sha256 = validate(source, artifacts)
    assert not report.errors
    with artifacts.open(sha256) as file:
        assert pq.read_table(file)["line"].to_pylist() == [3, 5]


@given(
    chosen=st.lists(st.tuples(st.sampled_from(["echo", "other"]), st.text(max_size=5), st.booleans()), max_size=60),
    segment_requests=st.integers(1, 7),
)
def test_the_plan_holds_every_request_once_in_segments_of_one_model(
    tmp_path_factory: pytest.TempPathFactory, chosen: list[tuple[str, str, bool]], segment_requests: int
) -> None:
    artifacts = Artifacts(f"file://{tmp_path_factory.mktemp('artifacts')}")
    lines, expected = [], {}
    for number, (model, text, blank) in enumerate(chosen):
        if blank:
            lines.append("")
        request = a_request(f"{number}-{text}", body={"model": model})
        lines.append(json.dumps(request))
        expected[len(lines)] = request
    report, plan, sha256 = validate("\n".join(lines).encode(), artifacts, segment_requests=segment_requests)
    if not chosen:
        assert [error["code"] for error in report.errors] == ["empty_file"]
        return
    assert not report.errors
    found = {}
    with artifacts.open(sha256) as file:
        parquet = pq.ParquetFile(file)
        assert parquet.num_row_groups == len(plan.segments)
        for number, (model, requests) in enumerate(plan.segments):
            rows = parquet.read_row_group(number).to_pylist()
            assert len(rows) == requests <= segment_requests
            for row in rows:
                body = json.loads(row["body"])
                assert body["model"] == model
                found[row["line"]] = (row["custom_id"], body)
    assert found == {line: (request["custom_id"], request["body"]) for line, request in expected.items()}
