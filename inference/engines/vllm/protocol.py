"""Requests as vLLM's schemas, and vLLM's error responses as answers."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import TypeAdapter, ValidationError

from batchyard.schema_words import invalid_values
from inference.engine import EngineAnswer, refusal_code
from inference.engines.vllm import internals


def parse(schema: Any, body: dict[str, Any]) -> Any:
    """Return the body as a request of vLLM's `schema`, or the EngineAnswer that refuses it."""
    try:
        return _validator(schema).validate_python(body)
    except ValidationError as error:
        first = invalid_values(error, body)[0]
        return EngineAnswer.refused(str(first), param=first.place or None, code="invalid_value")
    except Exception as error:  # noqa: BLE001  vLLM's validators raise its own errors, and any that a value causes
        return refusal(internals.create_error_response(error))


def refusal(response: Any) -> EngineAnswer:
    """Return vLLM's error response as OpenAI's error body."""
    error = response.error
    return EngineAnswer.refused(
        error.message, param=error.param, code=refusal_code(error.message), status=int(error.code)
    )


@functools.cache
def _validator(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)
