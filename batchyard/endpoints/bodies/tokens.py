"""Token ids of a text, the text of token ids, and token ids that follow others (vLLM's endpoints)."""

from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator
from pydantic_core import PydanticCustomError

from batchyard.endpoints.bodies.chat import Message
from batchyard.endpoints.bodies.common import Body
from batchyard.endpoints.bodies.sampling import SamplingParameters


class TokenizeBody(Body):
    """The body of /tokenize."""

    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, fail_fast=True)
    tools: list[dict[str, Any]] = Field(default_factory=list, fail_fast=True)
    add_special_tokens: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one", "it should have either prompt or messages")
        return self


class DetokenizeBody(Body):
    """The body of /detokenize."""

    tokens: list[NonNegativeInt] = Field(fail_fast=True)


class TokenSampling(SamplingParameters):
    """The sampling parameters that Batchyard reads. An engine checks the others."""

    logprobs: int | None = None  # type: ignore[assignment]  # here it is a number, in chat a yes or no


class GenerateBody(Body):
    """The body of /inference/v1/generate."""

    token_ids: list[NonNegativeInt] = Field(min_length=1, fail_fast=True)
    sampling_params: TokenSampling
    output_mode: Literal["tokens", "text"] = "tokens"
    return_token_ids: bool = False
    stream: bool = False
