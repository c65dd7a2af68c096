"""What a request may be depends on who answers: an engine of ours, or a server that decides for itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.models import ModelSpec
from batchyard.request_lines.lines import LineError
from inference.requests import ordering
from tasks.intake.requests import RequestChecker

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "How many rows?"}
URL = "http://127.0.0.1:1/v1"
MODELS = {
    "echo": ModelSpec(name="echo", engine="echo"),
    "theirs": ModelSpec(
        name="theirs",
        engine="openai",
        endpoints=tuple(ENDPOINTS),
        engine_args={"endpoints": [{"url": URL}], "max_model_len": 8},
    ),
}


def check(model: str, body: Mapping[str, Any], endpoint: str = CHAT) -> None:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": model, **body}}
    RequestChecker(MODELS).check(endpoint, line)


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "custom", "custom": {"name": "sql", "description": "runs a query"}}]},
        {"n": 2, "temperature": 0},
        {"response_format": {"type": "grammar", "grammar": 'root ::= "a"'}},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {}}]}]},
        {"messages": [{"role": "critic", "content": "No."}]},
        {"temperature": 1.0, "top_p": 1.5},
        {"max_tokens": None, "max_completion_tokens": 5},
        {"metadata": {"tags": ["a"]}},
    ],
)
def test_a_server_of_someone_else_decides_what_it_takes(body: dict[str, Any]) -> None:
    check("theirs", {"messages": [USER]} | body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "body.messages"),
        ({"messages": []}, "body.messages"),
        ({"messages": "hello"}, "body.messages"),
        ({"messages": [USER, None]}, "body.messages[1]"),
        ({"messages": [USER, {"content": "no role"}]}, "body.messages[1].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "body.messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "body.messages[0].content"),
        ({"messages": [USER], "max_tokens": "many"}, "body.max_tokens"),
        ({"messages": [USER], "seed": "x"}, "body.seed"),
        ({"messages": [USER], "temperature": "hot"}, "body.temperature"),
        ({"messages": [USER], "metadata": 3}, "body.metadata"),
        (
            {"messages": [USER], "repetition_detection": {"max_pattern_size": 4000, "min_count": 2}},
            "body.repetition_detection.max_pattern_size",
        ),
    ],
)
def test_what_is_read_here_has_to_be_valid_whoever_answers(body: dict[str, Any], param: str) -> None:
    for model in MODELS:
        with pytest.raises(LineError) as refusal:
            check(model, body)
        assert refusal.value.param == param


KEYS = sorted({name for entry in ENDPOINTS.values() for name in entry.body.model_fields})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False)
    | st.sampled_from(["user", "text", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "image_url", "function"]), inner)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool", "critic"])}, optional={"content": VALUES}),
    min_size=1,
)


@given(
    endpoint=st.sampled_from(list(ENDPOINTS)),
    body=st.dictionaries(st.sampled_from(KEYS), VALUES),
    messages=MESSAGES | VALUES,
)
def test_whatever_is_passed_on_is_prepared_or_refused_and_nothing_else(
    endpoint: str, body: dict[str, Any], messages: Any
) -> None:
    checker = RequestChecker(MODELS)
    body = json.loads(json.dumps({**ENDPOINTS[endpoint].example, "messages": messages, **body, "model": "theirs"}))
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    with suppress(LineError):
        checker.check(endpoint, line)
        checker.prepare(endpoint, "theirs", body, orjson.dumps(body))
        ordering.prefix_key(endpoint, body)
