"""The terminal changes a request's model and nothing else: what a line is, the server judges."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.cli import lines, requests
from batchyard.endpoints.catalog import CHAT
from batchyard.models import ModelSpec
from tasks.intake.validation import ValidationReport, Validator
from tests.support.stacks import a_chat

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(["body", "model", "a", '"', "{"]) | st.text(), children, max_size=3)
    ),
    max_leaves=12,
)
HALF_EMOJI = json.dumps(a_chat("half", "cut in the middle of an emoji \ud83d")).encode()
KEY_TWICE = (
    b'{"custom_id": "twice", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "any", "messages": '
    b'[{"role": "user", "content": "What is 1 + 1?"}], "messages": [{"role": "user", "content": "What is 9 + 9?"}]}}'
)
MODEL_TWICE = KEY_TWICE.replace(b'"messages": [{"role": "user", "content": "What is 1 + 1?"}]', b'"model": "other"')
DEEP = b'{"custom_id": "deep", "body": {"model": "any", "x": ' + b"[" * 3000 + b"]" * 3000 + b"}}"


@given(request=st.dictionaries(st.text(), JSON, max_size=2), body=st.dictionaries(st.text(), JSON), first=st.booleans())
def test_only_the_model_of_a_request_changes(request: dict[str, Any], body: dict[str, Any], first: bool) -> None:
    request = {"body": body, **request} if first else {**request, "body": body}
    expected, old = dict(request), request["body"]
    if isinstance(old, dict):
        expected["body"] = {**old, "model": "é"}
    for ascii_only in (True, False):
        line = json.dumps(request, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + b"\n"
        assert json.loads(lines.with_model(line, "é")) == expected


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        (b' { "body" : { "model" : "any" } , "x": 1 }\r\n', b' { "body" : { "model" : "mini" } , "x": 1 }\r\n'),
        (b'{"b\\u006fdy": {"x": {"model": 1}}}', b'{"b\\u006fdy": {"model": "mini", "x": {"model": 1}}}'),
        (b'{"body": { }}', b'{"body": {"model": "mini" }}'),
        (b'{"model": 1, "x": {"model": 2}}', None),
        (b'{"body": 3}', None),
        (b'{"body": {}, "body": {}}', None),
        (b'[{"body": {"model": 1}}]', None),
        (b"no json", None),
        (b"}]", None),
        (b"\n", None),
    ],
)
def test_a_line_keeps_its_bytes(line: bytes, changed: bytes | None) -> None:
    assert lines.with_model(line, "mini") == (line if changed is None else changed)


@given(st.binary() | st.text(st.sampled_from('{}[]:,"\\ body model')).map(str.encode))
def test_whatever_a_line_is_it_is_copied(line: bytes) -> None:
    assert len(lines.with_model(line, "mini")) >= len(line) - len(line.strip())


@pytest.mark.parametrize("line", [HALF_EMOJI, KEY_TWICE, MODEL_TWICE, DEEP])
def test_a_line_that_is_no_json_is_left_to_the_server_which_refuses_it_alone(tmp_path: Path, line: bytes) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(line + b"\n" + json.dumps(a_chat("good", "hello")).encode() + b"\n")
    assert not requests.becomes_requests(source, {"template": None})
    assert requests.endpoint_of(source) == CHAT.path
    requests.with_model(source, "echo", target)
    report, models = ValidationReport(), {"echo": ModelSpec(name="echo", engine="echo")}
    Validator(models, CHAT.path, 10).run(io.BytesIO(target.read_bytes()), None, report)
    assert [(error["line"], error["code"]) for error in report.errors] == [(1, "invalid_json_line")]


def test_a_file_with_a_byte_order_mark_is_read_as_any_other(tmp_path: Path) -> None:
    file, copy = tmp_path / "in.jsonl", tmp_path / "copy.jsonl"
    file.write_bytes(json.dumps(a_chat("a", "hello") | {"url": "/v1/completions"}).encode("utf-8-sig"))
    assert requests.endpoint_of(file) == "/v1/completions"
    assert not requests.becomes_requests(file, {})
    requests.with_model(file, "other", copy)
    assert json.loads(copy.read_text(encoding="utf-8-sig"))["body"]["model"] == "other"
