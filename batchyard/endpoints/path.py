"""The path of an endpoint, in the body of an API and in models.toml."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from batchyard.endpoints.catalog import ENDPOINTS


def _known(path: str) -> str:
    if path not in ENDPOINTS:
        raise PydanticCustomError("endpoint", f"it should be one of {', '.join(ENDPOINTS)}")
    return path


EndpointPath = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(ENDPOINTS)})]
