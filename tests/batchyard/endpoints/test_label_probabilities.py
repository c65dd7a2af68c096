"""The probabilities of labels are those with which an engine draws one of them, token by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.endpoints.label_probabilities import of_chat

Step = tuple[str, Mapping[str, float]]
VALUES = st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.lists(st.integers(-9, 300), max_size=3)
TOKENS = st.lists(st.dictionaries(st.sampled_from(["token", "logprob", "bytes", "top_logprobs"]), VALUES) | VALUES)


def chat(*steps: Step) -> dict[str, Any]:
    """A response whose tokens had these alternatives, with their probabilities."""

    def token(text: str, probability: float) -> dict[str, Any]:
        return {"token": text, "bytes": [*text.encode()], "logprob": math.log(probability)}

    content = [
        {**token(text, known[text]), "top_logprobs": [token(*one) for one in known.items()]} for text, known in steps
    ]
    return {"choices": [{"message": {"content": "".join(text for text, _ in steps)}, "logprobs": {"content": content}}]}


END = ("<end>", {"<end>": 1.0})


@pytest.mark.parametrize(
    ("labels", "steps", "expected"),
    [
        (["yes", "no"], [("yes", {"yes": 0.3, "no": 0.1, "maybe": 0.6}), END], [0.75, 0.25]),
        (["yes", "no"], [("y", {"y": 0.2, "yes": 0.2, "no": 0.4}), ("es", {"es": 0.5}), END], [0.5, 0.5]),
        (["ab", "ac", "b"], [("a", {"a": 0.8, "b": 0.2}), ("b", {"b": 0.1, "c": 0.3}), END], [0.2, 0.6, 0.2]),
        (["ab", "ac", "b"], [("b", {"a": 0.8, "b": 0.2}), END], [0.4, 0.4, 0.2]),
        (["grün", "rot"], [("gr", {"gr": 0.9, "rot": 0.1}), ("ün", {"ün": 1.0}), END], [0.9, 0.1]),
        (["one", "two"], [("one", {"one": 1.0}), END], [1.0, 0.0]),
    ],
)
def test_each_label_has_the_share_of_what_leads_to_it(
    labels: list[str], steps: Sequence[Step], expected: list[float]
) -> None:
    probabilities = of_chat(chat(*steps), labels)
    assert probabilities == {label: pytest.approx(value) for label, value in zip(labels, expected, strict=True)}


@pytest.mark.parametrize(
    "body", [{}, {"choices": []}, {"choices": [{"logprobs": None}]}, chat(("maybe", {"maybe": 1.0}))]
)
def test_an_answer_without_them_or_that_is_no_label_has_none(body: dict[str, Any]) -> None:
    assert of_chat(body, ["yes", "no"]) is None


@given(TOKENS | VALUES)
def test_no_answer_raises(body: Any) -> None:
    of_chat({"choices": [{"logprobs": {"content": body}}]}, ["yes", "no"])
    of_chat(body, ["yes", "no"])
