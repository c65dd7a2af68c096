"""Checks a request body against its endpoint's model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.schema_words import invalid_values
from batchyard.wording import nearest

_CLOSE = 0.85
"""How alike a name and a known one are if the first is most likely misspelt, from 0 to 1."""


def misspelt(endpoint: str, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each parameter that the endpoint does not know, with the known one that it is most like."""
    known = ENDPOINTS[endpoint].body.model_fields
    for name in body:
        if name not in known and (close := nearest(name, known, _CLOSE)) is not None:
            yield name, close


def validation_error(endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
    """Return what the endpoint refuses first in `body`, as (param, message); None if it is valid."""
    parameters = {key: value for key, value in body.items() if value is not None}
    try:
        ENDPOINTS[endpoint].body.model_validate(parameters)
    except ValidationError as error:
        # A value of a union type has an error per type; the deepest one says most.
        first = max(invalid_values(error, parameters), key=lambda value: len(value.path))
        path = "body" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first.path)
        return path, f"{path}: {first.reason}."
    return None
