"""Chat completions, and completions of a text (OpenAI's API reference)."""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from batchyard.endpoints.bodies.common import BodyObject, Generation, Prompt

NEED_CONTENT = ("system", "developer", "user", "tool")
CONTENT_KEYS = {"text": "text", "refusal": "refusal", "image_url": "image_url", "input_audio": "input_audio"}


class Function(BodyObject):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolParam(BodyObject):
    type: Literal["function"]
    function: Function


class FunctionCall(BodyObject):
    name: str
    arguments: str


class MessageToolCall(BodyObject):
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class NamedFunction(BodyObject):
    name: str


class NamedTool(BodyObject):
    type: Literal["function"]
    function: NamedFunction


class ContentPart(BodyObject):
    """A piece of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None


class ReadMessage(BodyObject):
    """What Batchyard itself reads of a message, whatever a server makes of the rest."""

    role: str
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None

    @field_validator("content")
    @classmethod
    def _texts(cls, content: str | list[ContentPart] | None) -> str | list[ContentPart] | None:
        if isinstance(content, list) and any(part.type == "text" and part.text is None for part in content):
            raise PydanticCustomError("part", "a part of type text should have a text")
        return content


class Message(BodyObject):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = Field(None, validate_default=True)
    name: str | None = None
    refusal: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[MessageToolCall] | None = Field(None, fail_fast=True)
    function_call: FunctionCall | None = None

    @field_validator("content")
    @classmethod
    def _there(cls, content: str | list[ContentPart] | None, info: ValidationInfo) -> str | list[ContentPart] | None:
        if content == [] or (content is None and info.data.get("role") in NEED_CONTENT):
            raise PydanticCustomError("missing", "it should be a text or a list of content parts")
        for part in content if isinstance(content, list) else ():
            needed = CONTENT_KEYS.get(part.type)
            if needed is not None and getattr(part, needed) is None:
                raise PydanticCustomError("part", "a part of this type should have its content in a key of that name")
        return content


class ChatBody(Generation):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: list[ToolParam] = Field(default_factory=list, fail_fast=True)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    functions: list[Function] = Field(default_factory=list, fail_fast=True)
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    modalities: list[str] = Field(default_factory=list, fail_fast=True)
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    reasoning_effort: str = ""
    verbosity: str = ""


class CompletionBody(Generation):
    """The body of /v1/completions."""

    prompt: Prompt
    max_tokens: int | None = Field(None, ge=0)  # 0 with `echo`: only the prompt's log-probabilities are wanted
    logprobs: NonNegativeInt | None = None  # type: ignore[assignment]  # here it is a number, in chat a yes or no
    best_of: PositiveInt = 1
    echo: bool = False
    suffix: str = ""
