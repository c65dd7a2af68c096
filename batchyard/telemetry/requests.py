"""Spans of single requests, as OpenTelemetry's conventions for generative AI name them. They hold no content."""

from collections.abc import Mapping
from typing import Any

from batchyard.telemetry.spans import Value

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_TOKENS = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}


def operation(endpoint: str) -> str:
    """Return `gen_ai.operation.name` of an endpoint's requests: the end of its path where the conventions have none."""
    return _OPERATIONS.get(endpoint) or endpoint.rpartition("/")[2]


def name(endpoint: str, model: str) -> str:
    return f"{operation(endpoint)} {model}"


def attributes(endpoint: str, model: str, provider: str) -> dict[str, Value]:
    """Return what is known of a request before its answer. `provider`: the kind of engine."""
    return {
        "gen_ai.operation.name": operation(endpoint),
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
    }


def usage(report: Mapping[str, Any]) -> dict[str, Value]:
    """Return the tokens of an answer that a report has under our names."""
    return {attribute: int(report[name]) for name, attribute in _TOKENS.items() if report.get(name)}
