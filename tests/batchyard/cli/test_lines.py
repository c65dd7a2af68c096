"""The terminal changes a request's model and nothing else: what a line is, the server judges."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchyard.cli import requests
from batchyard.endpoints.catalog import CHAT
from batchyard.models import ModelSpec
from batchyard.settings import Settings
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


def changed(line: bytes, model: str, folder: Path) -> bytes:
    """Return a file with this line and others around it, which stay, without these."""
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    source.write_bytes(b"no json\n\n" + line)
    requests.with_model(source, model, target)
    before, between, copy = target.read_bytes().partition(b"no json\n\n")
    assert not before and between
    return copy


@given(request=st.dictionaries(st.text(), JSON, max_size=2), body=st.dictionaries(st.text(), JSON))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_the_model_of_a_request_changes(request: dict[str, Any], body: dict[str, Any], tmp_path: Path) -> None:
    expected = {**request, "body": {**body, "model": "é"}}
    for ascii_only in (True, False):
        line = json.dumps({**request, "body": body}, ensure_ascii=ascii_only).encode() + b"\n"
        assert json.loads(changed(line, "é", tmp_path)) == expected


@pytest.mark.parametrize(
    "line",
    [
        b'{"model": 1, "x": {"model": 2}}',
        b'{"body": 3}',
        b'{"body": {}, "body": {}}',
        b'[{"body": {"model": 1}}]',
        b"}]",
        b'{"body": {"x": NaN}}\r\n',
        *(HALF_EMOJI, KEY_TWICE, MODEL_TWICE, DEEP),
    ],
)
def test_a_line_that_is_no_request_keeps_its_bytes(line: bytes, tmp_path: Path) -> None:
    assert changed(line, "mini", tmp_path) == line


@pytest.mark.parametrize("line", [HALF_EMOJI, KEY_TWICE, MODEL_TWICE, DEEP])
def test_a_line_that_is_no_json_is_left_to_the_server_which_refuses_it_alone(tmp_path: Path, line: bytes) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(line + b"\n" + json.dumps(a_chat("good", "hello")).encode() + b"\n")
    assert not requests.becomes_requests(source, {"template": None})
    assert requests.endpoint_of(source) == CHAT.path
    requests.with_model(source, "echo", target)
    report, models = ValidationReport(), {"echo": ModelSpec(name="echo", engine="echo")}
    Validator(models, CHAT.path, Settings()).run(io.BytesIO(target.read_bytes()), None, report)
    assert [(error["line"], error["code"]) for error in report.errors] == [(1, "invalid_json_line")]


def test_a_file_with_a_byte_order_mark_is_read_as_any_other(tmp_path: Path) -> None:
    file, copy = tmp_path / "in.jsonl", tmp_path / "copy.jsonl"
    file.write_bytes(json.dumps(a_chat("a", "hello") | {"url": "/v1/completions"}).encode("utf-8-sig"))
    assert requests.endpoint_of(file) == "/v1/completions"
    assert not requests.becomes_requests(file, {})
    requests.with_model(file, "other", copy)
    assert json.loads(copy.read_text(encoding="utf-8-sig"))["body"]["model"] == "other"
