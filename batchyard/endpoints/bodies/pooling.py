"""Embeddings and moderations (OpenAI's API reference), classification and pooling (vLLM's endpoints)."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from batchyard.endpoints.bodies.chat import Message
from batchyard.endpoints.bodies.common import Body, Prompt

Text = Annotated[str, Field(min_length=1)]
Dimensions = Annotated[int, Field(gt=0, le=65_536)]
"""More than any model has. An engine that makes vectors up makes no longer ones."""


class Pooled(Body):
    """What is pooled: inputs, or one conversation."""

    messages: list[Message] | None = Field(None, min_length=1, fail_fast=True)
    input: Prompt = Field(None, validate_default=True)

    @field_validator("input", mode="wrap")
    @classmethod
    def _there(cls, value: Any, validate: Callable[[Any], Any], info: ValidationInfo) -> Any:
        if value is not None:
            return validate(value)
        if info.data.get("messages") is None:
            raise PydanticCustomError("missing", "is missing; it, or messages, should be there")
        return None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.input is not None and self.messages is not None:
            raise PydanticCustomError("one", "it should have either input or messages")
        return self


class ClassifyBody(Pooled):
    """The body of /classify."""

    use_activation: bool = True


class EmbeddingBody(Pooled):
    """The body of /v1/embeddings. `messages` are vLLM's: one input of texts, images and sounds."""

    dimensions: Dimensions | None = None
    encoding_format: Literal["float", "base64"] = "float"
    embed_dtype: str | None = None
    endianness: str | None = None


class PoolingBody(EmbeddingBody):
    """The body of /pooling. `task` is what the model's pooler does, such as `token_embed`."""

    task: str | None = None
    use_activation: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


class ModerationBody(Body):
    """The body of /v1/moderations: a text, texts, or parts of one input."""

    input: Text | Annotated[list[Text | dict[str, Any]], Field(min_length=1, fail_fast=True)]
