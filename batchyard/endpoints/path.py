"""The path of an endpoint, in the body of an API and in models.toml."""

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

from batchyard.endpoints.catalog import ENDPOINTS, PATHS


def _known(path: str) -> str:
    if path not in PATHS:
        raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, ENDPOINTS))})
    return PATHS[path]


EndpointPath = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(ENDPOINTS)})]
"""An endpoint by its path or one of its other names, as its path."""
