"""Spans of requests have the names of OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as conventions

from batchyard.endpoints.catalog import PATHS
from batchyard.telemetry import requests


def test_attributes_are_those_of_the_conventions() -> None:
    report = {"input_tokens": 3, "output_tokens": 5, "cached_tokens": 2, "reasoning_tokens": 1, "answer": "secret"}
    attributes = requests.attributes("/v1/responses", "small", "vllm") | requests.usage(report)
    assert attributes == {
        conventions.GEN_AI_OPERATION_NAME: "chat",
        conventions.GEN_AI_PROVIDER_NAME: "vllm",
        conventions.GEN_AI_REQUEST_MODEL: "small",
        conventions.GEN_AI_USAGE_INPUT_TOKENS: 3,
        conventions.GEN_AI_USAGE_OUTPUT_TOKENS: 5,
        conventions.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: 2,
        conventions.GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: 1,
    }


@pytest.mark.parametrize("endpoint", PATHS)
def test_every_endpoint_has_an_operation(endpoint: str) -> None:
    assert requests.operation(endpoint).replace("_", "").isalpha()
