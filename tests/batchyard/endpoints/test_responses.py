"""The reader of response bodies: what it finds in each shape, and that no JSON makes it raise."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.endpoints import responses
from batchyard.endpoints.responses import TokenUsage

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def _object(*names: str, inner: st.SearchStrategy[Any] = JSON) -> st.SearchStrategy[Any]:
    """An object that may have these keys, each with any JSON."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, inner))


PARTS = st.lists(_object("type", "text", "thinking", "content", "summary", inner=JSON | st.just("text")), max_size=3)
MESSAGES = _object(
    "content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call", inner=JSON | PARTS
)
CHOICES = _object("message", "text", "error", "finish_reason", inner=JSON | MESSAGES)
ENTRIES = _object("embedding", "data", "label", "score", inner=JSON | st.lists(st.floats()))
BODIES = JSON | _object(
    *("choices", "data", "output", "content", "results", "usage", "error", "incomplete_details", "prompt"),
    inner=JSON | st.lists(JSON | CHOICES | ENTRIES, max_size=3) | PARTS,
)


@given(BODIES, _object("embed_dtype", "endianness"))
def test_no_json_makes_the_reader_raise(body: Any, request: dict[str, Any]) -> None:
    found = responses.fault(body)
    assert found is None or (isinstance(found.message, str) and found.message)
    for output in [*responses.outputs(body), responses.output(body)]:
        assert output.text is None or isinstance(output.text, str)
        assert output.text or output.text == "" or output.no_text is not None
    responses.vectors(body, request)
    responses.labels(body)
    responses.scores(body)
    responses.tokens(body)
    assert all(tokens is None or tokens >= 0 for tokens in responses.usage(body))


def _chat(finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "the body is no JSON object"),
        ([], "the body is no JSON object"),
        ({}, "the body has none of choices, data, output, …"),
        ({"choices": []}, "choices is an empty list"),
        ({"choices": None}, "choices is null"),
        ({"choices": [None]}, "choices[0] is null"),
        ({"choices": [{"index": 0}]}, "choices[0] has neither a message nor a text"),
        ({"choices": [*_chat(content="a")["choices"], None]}, "choices[1] is null"),
        ({"choices": [{"message": None}]}, "choices[0] has neither a message nor a text"),
        ({"choices": [{"token_ids": None}]}, "choices[0] has neither a message nor a text"),
        (_chat(content=3), "choices[0].message.content is a number"),
        (_chat("error", content=""), "choices[0] ended with finish_reason error"),
        (_chat("abort", content="Paris is"), "choices[0] ended with finish_reason abort"),
        ({"status": "cancelled", "output": []}, "the response was cancelled"),
        ({"choices": [{"error": {"code": 502, "message": "Upstream error"}}]}, "Upstream error"),
        ({"error": {"message": "no more", "code": "insufficient_quota"}}, "no more"),
        ({"error": "no more"}, "no more"),
        ({"data": []}, "data is an empty list"),
        ({"data": [{"embedding": None}]}, "data[0] has no vector"),
    ],
)
def test_a_body_that_is_no_answer_says_why(body: Any, message: str) -> None:
    found = responses.fault(body)
    assert found is not None and found.message == message


@pytest.mark.parametrize(
    "body",
    [
        _chat(content="yes"),
        _chat(content=""),
        _chat("length", content=None, reasoning="let me see"),
        _chat("tool_calls", content=None, tool_calls=[{"id": "c1"}]),
        {"choices": [{"text": "yes"}], "error": None},
        {"data": [{"embedding": [1.0]}]},
        {"data": [{"embedding": "AACAPw=="}]},
        {"data": [{"label": "late", "probs": [1.0]}]},
        {"results": [{"index": 0, "relevance_score": 0.5}]},
        {"output": [{"type": "message", "content": []}], "error": None},
        {"content": [], "stop_reason": "end_turn"},
        {"answers": {"late": {"yes": 0.9}}},
        {"tokens": [1], "count": 1},
        {"prompt": "hello"},
        {"input_tokens": 3},
    ],
)
def test_answers_of_every_endpoint_are_answers(body: dict[str, Any]) -> None:
    assert responses.fault(body) is None


def test_a_status_in_an_error_says_whether_another_attempt_may_help() -> None:
    for code, status in ((502, 502), ("429", 429), ("bad", None), (7, None), (True, None)):
        found = responses.fault({"error": {"code": code, "message": "no"}})
        assert found is not None and found.status == status


@pytest.mark.parametrize(
    ("finish_reason", "message", "code"),
    [
        ("length", {"content": None, "reasoning": "let me see"}, "reasoning_only"),
        ("length", {"content": "", "reasoning_content": "let me see"}, "reasoning_only"),
        ("stop", {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}, "reasoning_only"),
        ("stop", {"content": None, "refusal": "I will not."}, "refusal"),
        ("stop", {"content": [{"type": "refusal", "refusal": "I will not."}]}, "refusal"),
        ("content_filter", {"content": None}, "content_filter"),
        ("content_filter", {"content": ""}, "content_filter"),
        ("tool_calls", {"content": None, "tool_calls": [{"id": "c1"}]}, "tool_call"),
        ("function_call", {"content": "", "function_call": {"name": "f", "arguments": "{}"}}, "tool_call"),
        ("stop", {}, "empty_answer"),
        ("stop", {"content": None}, "empty_answer"),
        ("stop", {"content": ""}, None),
        ("stop", {"content": "yes", "reasoning": "hm", "tool_calls": [{}]}, None),
    ],
)
def test_an_output_without_text_says_why(finish_reason: str, message: dict[str, Any], code: str | None) -> None:
    no_text = responses.output(_chat(finish_reason, **message)).no_text
    assert (no_text and no_text.code) == code


def test_texts_and_reasoning_are_found_in_each_apis_shape() -> None:
    output = responses.output(_chat(content="yes", reasoning_content="hm"))
    assert (output.text, output.reasoning, output.finish_reason) == ("yes", "hm", "stop")
    assert responses.output({"choices": [{"text": "yes", "finish_reason": "length"}]}).text == "yes"
    assert [one.text for one in responses.outputs({"choices": [{"text": "a"}, {"text": "b"}]})] == ["a", "b"]
    messages = {
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}],
        "stop_reason": "x",
    }
    output = responses.output(messages)
    assert (output.text, output.reasoning, output.finish_reason) == ("yes", "hm", "x")
    output = responses.output(
        {
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "content": [{"type": "output_text", "text": "yes"}]},
                {"type": "function_call", "name": "f"},
            ],
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
        }
    )
    assert (output.text, output.reasoning, output.finish_reason) == ("yes", "hm", "length")
    assert [call["name"] for call in output.tool_calls] == ["f"]


def test_all_vectors_of_a_response_are_read_packed_ones_too() -> None:
    vector = [1.0, -0.5, 0.25]

    def packed(form: str) -> str:
        return base64.b64encode(struct.pack(form, *vector)).decode()

    listed = {"data": [{"embedding": vector}, {"embedding": packed("<3f")}]}
    assert responses.vectors(listed) == [vector, vector]
    assert responses.vectors({"data": [{"embedding": packed(">3f")}]}, {"endianness": "big"}) == [vector]
    assert responses.vectors({"data": [{"embedding": packed("<3e")}]}, {"embed_dtype": "float16"}) == [vector]
    half = base64.b64encode(b"".join(struct.pack("<f", value)[2:] for value in vector)).decode()
    assert responses.vectors({"data": [{"embedding": half}]}, {"embed_dtype": "bfloat16"}) == [vector]
    assert responses.vectors({"data": [{"data": [vector, vector]}]}) == [vector, vector]
    assert responses.vectors({"data": [{"embedding": "no base64"}, {"embedding": ["a"]}]}) == []


def test_labels_and_scores_are_those_of_the_entries() -> None:
    assert responses.labels({"data": [{"label": "late"}, {"label": None}, {"label": "wet"}]}) == ["late", "wet"]
    assert responses.scores({"data": [{"score": 0.5}]}) == [0.5]
    assert responses.scores({"results": [{"relevance_score": 1}]}) == [1.0]


def test_tokens_are_those_that_the_response_reports() -> None:
    openai = {
        "prompt_tokens": 7,
        "completion_tokens": 64,
        "total_tokens": 71,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 60},
    }
    assert responses.usage({"usage": openai}) == TokenUsage(7, 4, 64, 60, 71)
    anthropic = {"input_tokens": 7, "output_tokens": 5, "cache_read_input_tokens": 2}
    assert responses.usage({"usage": anthropic}) == TokenUsage(7, 2, 5, None, None)
    of_responses = {"input_tokens": 1, "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 2}}
    assert responses.usage({"usage": of_responses}).reasoning_tokens == 2
    assert responses.usage({"usage": {"prompt_tokens": True, "completion_tokens": -1}}) == TokenUsage()


def test_the_label_of_a_decision_is_its_most_probable_option() -> None:
    answers = {
        "late": {"type": "noul", "noul": 0.9, "probabilities": {"yes": 0.9, "no": 0.1}},
        "how": {"type": "score", "legend": {"0": "calm", "1": "rough"}, "probabilities": {"0": 0.2, "1": 0.8}},
        "odd": {"probabilities": {"a": None}},
        "none": 5,
    }
    assert responses.labels({"answers": answers}) == ["yes", "rough"]


def test_token_ids_without_a_text_are_an_answer() -> None:
    body = {"choices": [{"index": 0, "token_ids": [5, 6], "finish_reason": "length"}]}
    assert responses.fault(body) is None
    output = responses.output(body)
    assert (output.text, output.token_ids) == (None, [5, 6])
    assert responses.tokens(body) == responses.tokens({"tokens": [5, 6]}) == [5, 6]
    assert responses.tokens({"tokens": "5"}) == []
    assert output.no_text is not None and output.no_text.code == "token_ids"


@pytest.mark.parametrize(
    ("result", "label"),
    [
        ({"flagged": False, "categories": {"violence": False}}, "not flagged"),
        (
            {
                "flagged": True,
                "categories": {"hate": True, "violence": True, "self-harm": False},
                "category_scores": {"hate": 0.5, "violence": 0.9, "self-harm": 0.99},
            },
            "violence",
        ),
        ({"flagged": True, "categories": None, "category_scores": []}, "flagged"),
    ],
)
def test_the_label_of_a_moderation_is_the_worst_category_that_is_flagged(result: Any, label: str) -> None:
    assert responses.labels({"results": [result]}) == [label]


def choices(*endings: tuple[str | None, str], **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text, **message}, "finish_reason": why} for text, why in endings]}


@pytest.mark.parametrize(
    ("body", "is_cut_off", "is_empty"),
    [
        (choices(("yes", "stop")), False, False),
        (choices(("yes", "stop"), ("ye", "length")), True, False),
        (choices(("yes", "stop"), (" \n", "stop")), False, True),
        (choices((None, "length"), reasoning_content="hm"), True, True),
        (choices((None, "tool_calls"), tool_calls=[{"id": "c"}]), False, False),
        (choices((None, "stop"), refusal="no"), False, False),
        ({"choices": [{"text": "", "finish_reason": "length"}]}, True, True),
        ({"output": [], "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, True, True),
        ({"content": [{"type": "text", "text": "ye"}], "stop_reason": "max_tokens"}, True, False),
        ({"data": [{"embedding": [1.0]}]}, False, False),
    ],
)
def test_answers_that_were_cut_off_or_are_empty_are_known(body: Any, is_cut_off: bool, is_empty: bool) -> None:
    flaws = responses.flaws(body)
    assert ("cut_off" in flaws, "empty" in flaws) == (is_cut_off, is_empty)


def test_answers_that_were_refused_are_known() -> None:
    filtered = {"content": [], "stop_reason": "refusal"}
    refused = [choices((None, "stop"), refusal="no"), choices((None, "content_filter")), filtered]
    assert all("refused" in responses.flaws(body) for body in refused)
    assert "refused" not in responses.flaws(choices(("no", "stop")))


def test_an_answer_that_repeats_itself_says_so_and_where_that_begins() -> None:
    def choice(text: str, reason: str = "repetition") -> dict[str, Any]:
        return {"choices": [{"message": {"content": text}, "finish_reason": reason}], "batchyard": {"cached": True}}

    whole = choice("la la la la", "stop")
    assert responses.explained(whole) is whole and "looped" not in responses.flaws(whole)
    for text, start in (("I say:" + "no, no. " * 5, 6), ("Sum:" + "1 222 " * 4 + "1", 4), ("odd", 3), ("", 0)):
        looped = choice(text)
        said = responses.explained(looped)["batchyard"]
        assert said == {"cached": True, "stopped": "repetition", "loop_start": start}
        assert "looped" in responses.flaws(looped)
