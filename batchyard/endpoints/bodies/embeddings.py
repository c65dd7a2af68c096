"""Embeddings (OpenAI's API reference)."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from batchyard.endpoints.bodies.common import Body, Prompt


class EmbeddingBody(Body):
    """The body of /v1/embeddings."""

    input: Prompt
    dimensions: PositiveInt | None = None
    encoding_format: Literal["float", "base64"] = "float"
