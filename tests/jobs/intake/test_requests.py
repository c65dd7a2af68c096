"""A recipe's requests become those of a segment as they are, or are refused before an engine sees them."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.models import ModelSpec
from batchyard.recipes import Answer, Item
from batchyard.recipes.program import Request
from inference.engines import registry
from jobs.intake.requests import PreparedRequest, Preparer

CHAT = "/v1/chat/completions"
ITEM = Item(3, "mine", {"prompt": "hello"})
MODELS = {
    "echo": ModelSpec(name="echo", engine="echo"),
    "remote": ModelSpec(name="remote", engine="openai", source="http://127.0.0.1:1/v1"),
}
MESSAGES = [{"role": "user", "content": "hello"}]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def request(model: str = "echo", structure: dict[str, Any] | None = None, **body: Any) -> Request:
    content = {"model": model, "messages": MESSAGES} | body
    return Request("draft", CHAT, 2, 1, model, content, structure or {}, None, 4)


def prepare(request: Request, *, item: Item = ITEM, retry: int = 0, **options: Any) -> PreparedRequest | Answer:
    return Preparer(MODELS, **options).prepare(item, 7, request, retry)


def prepared(request: Request, **options: Any) -> PreparedRequest:
    outcome = prepare(request, **options)
    assert isinstance(outcome, PreparedRequest), outcome
    return outcome


def test_a_prepared_request_says_its_place_and_what_its_answer_depends_on() -> None:
    one = prepared(request(temperature=0, max_tokens=9), item=Item(3, "mine", {}, life=2), retry=1)
    assert (one.position, one.life, one.turn, one.stage, one.visit, one.sample, one.retry) == (
        7,
        2,
        4,
        "draft",
        2,
        1,
        1,
    )
    assert (one.model, one.custom_id, one.output_tokens) == ("echo", "mine#2/draft.2.1~1", 9)
    assert one.fingerprint is not None
    assert prepared(request(temperature=0), shares_answers=False).fingerprint is None


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_what_a_recipe_sends_arrives_as_it_is_or_is_refused(extra: dict[str, Any]) -> None:
    for model in MODELS:
        asked = request(model, metadata=extra)
        outcome = prepare(asked)
        if isinstance(outcome, PreparedRequest):
            assert orjson.loads(outcome.body) == asked.body
        else:
            assert outcome.error is not None and outcome.error["message"] and outcome.status_code == 400


@given(st.permutations(["a", "b", "c", "d"]), st.permutations(["a", "b", "c", "d"]))
def test_a_request_is_known_again_whatever_the_order_of_its_keys(one: list[str], other: list[str]) -> None:
    first, again = (prepared(request(metadata={name: str(ord(name)) for name in names})) for names in (one, other))
    assert first.ask == again.ask


@pytest.mark.parametrize("changed", [{"temperature": 0.5}, {"messages": [{"role": "user", "content": "bye"}]}])
def test_another_body_another_stage_and_another_endpoint_are_other_requests(changed: dict[str, Any]) -> None:
    one = request()
    assert prepared(request(**changed)).ask != prepared(one).ask
    elsewhere = Request("final", CHAT, 2, 1, "echo", one.body, {}, None, 4)
    assert prepared(elsewhere).ask != prepared(one).ask
    later = Request("draft", CHAT, 3, 0, "echo", one.body, {}, None, 5)
    assert prepared(later).ask == prepared(one).ask, "the same question in another turn"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"metadata": {"a": math.nan}}, "NaN"),
        ({"metadata": {"a": [math.inf]}}, "Infinity"),
        ({"metadata": {"a": {1, 2}}}, "is not a text"),
        ({"metadata": {"a": "\ud800"}}, "JSON"),
        ({"metadata": {5: "a number for a name"}}, "5 is not a text"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
def test_a_body_that_cannot_be_sent_is_an_answer_that_says_why(body: dict[str, Any], says: str) -> None:
    outcome = prepare(request(**body))
    assert isinstance(outcome, Answer) and not outcome.ok and outcome.error is not None
    assert (outcome.error["code"], outcome.status_code) == ("invalid_request", 400)
    assert says in outcome.error["message"]


def test_an_integer_of_more_than_64_bits_is_sent_as_it_is() -> None:
    outcome = prepare(request("remote", metadata={"a": 2**70}))
    assert isinstance(outcome, PreparedRequest) and str(2**70).encode() in outcome.body


def test_a_structure_becomes_what_the_models_engine_calls_it_or_is_refused() -> None:
    kind, value = "regex", "[ab]+"
    remote = registry.capabilities("openai").structure(kind, value)
    for model, parameters in (("echo", registry.capabilities("echo").structure(kind, value)), ("remote", remote)):
        outcome = prepare(request(model, {kind: value}))
        if parameters is None:
            assert isinstance(outcome, Answer) and outcome.error is not None
            assert outcome.error["param"] == kind and model in outcome.error["message"]
        else:
            assert isinstance(outcome, PreparedRequest)
            assert parameters.items() <= orjson.loads(outcome.body).items()


def test_a_model_that_is_not_served_is_refused_with_those_that_are() -> None:
    outcome = prepare(request("nobody", {"regex": "a"}))
    assert isinstance(outcome, Answer) and outcome.error is not None
    assert outcome.error["code"] == "model_not_found" and "echo, remote" in outcome.error["message"]
