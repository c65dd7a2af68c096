"""Sampling parameters: what a body and a model's defaults amount to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from batchyard.endpoints.bodies.sampling import SamplingParameters

of = SamplingParameters.of


@pytest.mark.parametrize(
    ("body", "defaults", "limit"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_tokens": 9}, 7),
        ({"max_tokens": 5, "max_completion_tokens": None}, {"max_tokens": 9}, 5),
        ({"max_tokens": None}, {"max_tokens": 9}, 9),
        ({}, {}, None),
    ],
)
def test_the_limit_of_tokens_is_the_newer_name_then_the_older_one_then_the_default(
    body: dict[str, Any], defaults: dict[str, Any], limit: int | None
) -> None:
    assert of(body, defaults).max_tokens == limit


def test_a_body_overrides_the_defaults_and_null_leaves_them() -> None:
    parameters = of({"temperature": 0.0, "top_p": None, "messages": []}, {"temperature": 0.7, "top_p": 0.9})
    assert (parameters.temperature, parameters.top_p, parameters.top_k) == (0.0, 0.9, 0)


def test_one_stop_text_is_a_list_of_one() -> None:
    assert of({"stop": "END"}, {}).stop == ["END"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"top_logprobs": 3}, "needs logprobs"),
        ({"stop": ["a", ""]}, "empty strings"),
        ({"n": 2, "temperature": 0}, "all samples would be the same"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        of(body, {})


def test_only_a_greedy_request_without_penalties_takes_the_likeliest_token() -> None:
    assert of({"temperature": 0}, {}).plain
    assert not of({}, {}).plain
    assert not of({"temperature": 0, "frequency_penalty": -0.5}, {}).plain
    assert not of({"temperature": 0, "repetition_penalty": 1.1}, {}).plain
