"""Classification and pooling (vLLM's endpoints)."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from batchyard.endpoints.bodies.chat import Message
from batchyard.endpoints.bodies.common import Body, Prompt


class _Pooled(Body):
    input: Prompt = None
    messages: list[Message] | None = Field(None, min_length=1, fail_fast=True)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.input is None) == (self.messages is None):
            raise PydanticCustomError("one", "it should have either input or messages")
        return self


class ClassifyBody(_Pooled):
    """The body of /classify."""

    use_activation: bool = True


class PoolingBody(_Pooled):
    """The body of /pooling. `task` is what the model's pooler does, such as `token_embed`."""

    task: str | None = None
    dimensions: PositiveInt | None = None
    encoding_format: Literal["float", "base64"] = "float"
    embed_dtype: str | None = None
    endianness: str | None = None
    use_activation: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
