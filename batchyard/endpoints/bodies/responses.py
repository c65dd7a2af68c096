"""Responses (OpenAI's API reference)."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from batchyard.endpoints.bodies.common import Body, BodyObject


class InputItem(BodyObject):
    """A message, a call of a tool, its output, or a reasoning. An engine checks what else it holds."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[dict[str, Any]] | None = None


class ResponseBody(Body):
    """The body of /v1/responses."""

    input: str | Annotated[list[InputItem], Field(min_length=1, fail_fast=True)]
    instructions: str = ""
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_logprobs: int = Field(0, ge=0, le=20)
    tools: list[dict[str, Any]] = Field(default_factory=list, fail_fast=True)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: dict[str, Any] = Field(default_factory=dict)
    reasoning: dict[str, Any] = Field(default_factory=dict)
    include: list[str] = Field(default_factory=list, fail_fast=True)
    truncation: Literal["auto", "disabled"] = "disabled"
    stream: bool = False
    background: bool = False
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None

    @field_validator("input")
    @classmethod
    def _there(cls, value: str | list[InputItem]) -> str | list[InputItem]:
        if not value:
            raise PydanticCustomError("input", "it should be a text or a list of items, not empty")
        return value

    @field_validator("previous_response_id", "conversation", "prompt")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        if value is not None:
            raise PydanticCustomError("stored", "no response is stored here to go on from; put all of it into input")
        return value
