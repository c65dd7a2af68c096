"""Embeddings (OpenAI's API reference)."""

from __future__ import annotations

from typing import Literal

from batchyard.endpoints.bodies.pooling import Dimensions, Pooled


class EmbeddingBody(Pooled):
    """The body of /v1/embeddings. `messages` are vLLM's: one input of texts, images and sounds."""

    dimensions: Dimensions | None = None
    encoding_format: Literal["float", "base64"] = "float"
    embed_dtype: str | None = None
    endianness: str | None = None
