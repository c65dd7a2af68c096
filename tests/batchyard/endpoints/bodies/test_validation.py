"""A body is what its endpoint takes, or it has one mistake with its place and what would be right."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.endpoints import catalog
from batchyard.endpoints.bodies import validation
from batchyard.endpoints.catalog import ENDPOINTS

CHAT, COMPLETIONS, EMBEDDINGS = catalog.CHAT.path, catalog.COMPLETIONS.path, catalog.EMBEDDINGS.path
USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    COMPLETIONS: {"prompt": "hello"},
    EMBEDDINGS: {"input": "hello"},
    catalog.RESPONSES.path: {"input": "hello"},
    catalog.MESSAGES.path: {"messages": [USER], "max_tokens": 5},
    catalog.GENERATE.path: {"token_ids": [1], "sampling_params": {}},
}


def validation_error(endpoint: str, **changes: Any) -> tuple[str, str] | None:
    return validation.validation_error(endpoint, {"model": "m"} | BASE[endpoint] | changes)


def chat(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


GOOD: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {}),
    (CHAT, chat({"role": "developer", "content": [{"type": "text", "text": "hi"}]})),
    (CHAT, chat(USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "5"})),
    (CHAT, chat({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}})),
    (CHAT, chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})),
    (CHAT, chat({"role": "user", "content": [{"type": "something_new", "x": 1}]})),
    (CHAT, {"temperature": None, "stop": None, "max_tokens": None, "tools": None}),
    (CHAT, {"temperature": 0, "top_p": 1, "n": 1, "seed": -5, "stop": "a", "logit_bias": {"50256": -100}}),
    (CHAT, {"n": 2, "temperature": 0, "use_beam_search": True}),
    (CHAT, {"logprobs": True, "top_logprobs": 5, "max_completion_tokens": 5, "stop": ["a", "b"]}),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}),
    (CHAT, {"metadata": {"a": "1"}, "user": "u", "unknown": object}),
    (CHAT, {"repetition_detection": {"min_pattern_size": 1, "max_pattern_size": 128, "min_count": 128}}),
    (COMPLETIONS, {"prompt": ["a", ""], "logprobs": 3}),
    (COMPLETIONS, {"prompt": [0, 5], "echo": True, "max_tokens": 0}),
    (COMPLETIONS, {"prompt": [[1], [2, 3]]}),
    (EMBEDDINGS, {"input": ["a", "b"], "dimensions": 5, "encoding_format": "base64"}),
]


@pytest.mark.parametrize(("endpoint", "changes"), GOOD)
def test_what_the_endpoint_takes_is_no_mistake(endpoint: str, changes: dict[str, Any]) -> None:
    assert validation_error(endpoint, **changes) is None


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"model": 5}, "body.model", "not a text"),
    (CHAT, {"messages": None}, "body.messages", "is missing"),
    (CHAT, chat(), "body.messages", "a list, not empty"),
    (CHAT, {"messages": {"a": 1}}, "body.messages", "not a list"),
    (CHAT, chat(USER, 5), "body.messages[1]", "an object"),
    (CHAT, chat({"content": "x"}), "body.messages[0].role", "is missing"),
    (CHAT, chat({"role": "robot", "content": "x"}), "body.messages[0].role", "'user'"),
    (CHAT, chat(USER, USER, USER, {"role": "user"}), "body.messages[3].content", "a text or a list"),
    (CHAT, chat({"role": "tool", "content": None}), "body.messages[0].content", "a text or a list"),
    (CHAT, chat({"role": "user", "content": []}), "body.messages[0].content", "a text or a list"),
    (CHAT, chat({"role": "user", "content": 5}), "body.messages[0].content", "a text, or a list"),
    (CHAT, chat({"role": "user", "content": {"a": 1}}), "body.messages[0].content", "a text, or a list"),
    (CHAT, chat({"role": "user", "content": ["x"]}), "body.messages[0].content[0]", "an object"),
    (CHAT, chat({"role": "user", "content": [{"type": "text"}]}), "body.messages[0].content", "in a key of that name"),
    (CHAT, chat({"role": "assistant", "tool_calls": [{}]}), "body.messages[0].tool_calls[0].function", "is missing"),
    (CHAT, {"temperature": "hot"}, "body.temperature", "not a number"),
    (CHAT, {"temperature": True}, "body.temperature", "not a number"),
    (CHAT, {"temperature": -1}, "body.temperature", "-1 is not at least 0."),
    (CHAT, {"temperature": 9}, "body.temperature", "9 is not at most 2."),
    (COMPLETIONS, {"temperature": 2.5}, "body.temperature", "2.5 is not at most 2."),
    (catalog.RESPONSES.path, {"temperature": 9}, "body.temperature", "9 is not at most 2."),
    (catalog.MESSAGES.path, {"temperature": 1.5}, "body.temperature", "1.5 is not at most 1."),
    (catalog.GENERATE.path, {"sampling_params": {"temperature": 9}}, "body.sampling_params.temperature", "at most 2."),
    (catalog.GENERATE.path, {"sampling_params": {"top_p": 0}}, "body.sampling_params.top_p", "0 is not more than 0."),
    (CHAT, {"top_p": 2}, "body.top_p", "2 is not at most 1."),
    (CHAT, {"max_tokens": 0}, "body.max_tokens", "0 is not at least 1."),
    (CHAT, {"max_completion_tokens": 1.5}, "body.max_completion_tokens", "not a whole number"),
    (CHAT, {"seed": 1.8e19}, "body.seed", "not a whole number"),
    (CHAT, {"n": 2, "temperature": 0}, "body", "n must be 1"),
    (CHAT, {"stop": 0}, "body.stop", "not a list"),
    (CHAT, {"stop": ["a", 5]}, "body.stop[1]", "not a text"),
    (CHAT, {"logit_bias": {"a": 1}}, "body.logit_bias", "token ids"),
    (CHAT, {"logit_bias": {"5": 101}}, "body.logit_bias", "from -100 to 100"),
    (
        CHAT,
        {"tools": [{"type": "function", "function": {"name": ""}}]},
        "body.tools[0].function.name",
        "a text, not empty",
    ),
    (CHAT, {"tool_choice": "maybe"}, "body.tool_choice", "'required', or an object"),
    (CHAT, {"tool_choice": {"type": "function"}}, "body.tool_choice.function", "is missing"),
    (CHAT, {"response_format": {"type": "xml"}}, "body.response_format.type", "'json_schema'"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "body.response_format.json_schema", "an object"),
    (CHAT, {"stream": "yes"}, "body.stream", "not true or false"),
    (CHAT, {"metadata": "x"}, "body.metadata", "an object"),
    (CHAT, {"metadata": {"a": 1}}, "body.metadata.a", "1 is not a text"),
    (
        CHAT,
        {"repetition_detection": {"max_pattern_size": 129, "min_count": 2}},
        *("body.repetition_detection.max_pattern_size", "129 is not at most 128"),
    ),
    (COMPLETIONS, {"repetition_detection": {"min_count": 129}}, "body.repetition_detection.min_count", "at most 128"),
    *(
        (COMPLETIONS, {"prompt": prompt}, "body.prompt", "a text, a list of token ids, or a list of either")
        for prompt in ("", [], [[]], 5, {}, [None], [1, "a"], ["a", 1], [[1], ["a"]], [-1], [True])
    ),
    (COMPLETIONS, {"logprobs": True}, "body.logprobs", "not a whole number"),
    (EMBEDDINGS, {"input": None}, "body.input", "is missing"),
    (EMBEDDINGS, {"dimensions": 0}, "body.dimensions", "0 is not more than 0."),
    (EMBEDDINGS, {"encoding_format": "hex"}, "body.encoding_format", "'float' or 'base64'"),
]


@pytest.mark.parametrize(("endpoint", "changes", "param", "right"), BAD)
def test_a_mistake_has_its_place_and_what_would_be_right(
    endpoint: str, changes: dict[str, Any], param: str, right: str
) -> None:
    error = validation_error(endpoint, **changes)
    assert error is not None
    assert error[0] == param
    assert right in error[1]


@pytest.mark.parametrize(
    "changes",
    [
        chat(*[1] * 1_000_000),
        chat({"role": "user", "content": [1] * 1_000_000}),
        {"stop": [1] * 1_000_000},
        {"tools": [1] * 1_000_000},
        {"logit_bias": {str(number): "x" for number in range(100_000)}},
    ],
    ids=["messages", "parts", "stop", "tools", "logit_bias"],
)
def test_a_million_mistakes_are_one_and_cost_no_memory(changes: dict[str, Any]) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        error = validation_error(CHAT, **changes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error is not None
    assert peak < 2**20


KEYS = sorted({name for entry in ENDPOINTS.values() for name in entry.body.model_fields} | {"max_completion_tokens"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYS, "role", "content"]), inner),
    max_leaves=8,
)


@given(endpoint=st.sampled_from(list(ENDPOINTS)), body=st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_any_body_at_all_has_at_most_one_mistake_with_a_short_message(endpoint: str, body: dict[str, Any]) -> None:
    error = validation.validation_error(endpoint, {"model": "m"} | dict(ENDPOINTS[endpoint].example) | body)
    if error is not None:
        assert error[0].startswith("body")
        assert len(error[1]) < 350
        for text in filter(lambda value: isinstance(value, str) and len(value) > 100, body.values()):
            assert json.dumps(text) not in error[1]


def test_an_empty_list_is_called_empty() -> None:
    error = validation_error(CHAT, messages=[])
    assert error is not None and error[1] == "body.messages: is empty; it should be a list, not empty."
