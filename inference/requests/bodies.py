"""Request bodies of /v1/chat/completions, /v1/completions and /v1/embeddings (OpenAI's API reference).

Other keys are ignored here: an engine refuses those that it does not support (`Engine.unsupported`). Null means absent,
as it does to the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainValidator,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from batchyard.schema_words import invalid_values
from inference.requests.sampling import SamplingParameters

NEED_CONTENT = ("system", "developer", "user", "tool")
CONTENT_KEYS = {"text": "text", "refusal": "refusal", "image_url": "image_url", "input_audio": "input_audio"}


def prompts(value: Any) -> Sequence[Any]:
    """Return the prompts (or inputs) in one `prompt` (or `input`), each a text or a list of token ids."""
    return [value] if isinstance(value, str) or isinstance(value[0], int) else value


def _prompt(value: Any) -> Any:
    if value and isinstance(value, (str, list)):
        values = prompts(value)
        if all(isinstance(text, str) for text in values):
            return value
        if all(isinstance(ids, list) and ids and all(type(id) is int and id >= 0 for id in ids) for ids in values):
            return value
    raise PydanticCustomError("prompt", "it should be a text, a list of token ids, or a list of either, not empty")


def _biases(value: Any) -> Any:
    if isinstance(value, dict) and all(
        type(bias) in (int, float) and -100 <= bias <= 100 and token.isdecimal() for token, bias in value.items()
    ):
        return value
    raise PydanticCustomError("logit_bias", "it should be an object of token ids and numbers from -100 to 100")


Prompt = Annotated[Any, PlainValidator(_prompt)]
Biases = Annotated[Any, PlainValidator(_biases)]
# A list stops at its first error: a hostile one has millions.


class _Object(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class Function(_Object):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Object):
    type: Literal["function"]
    function: Function


class Call(_Object):
    name: str
    arguments: str


class ToolCall(_Object):
    id: str | None = None
    type: Literal["function"] | None = None
    function: Call


class NamedFunction(_Object):
    name: str


class NamedTool(_Object):
    type: Literal["function"]
    function: NamedFunction


class ContentPart(_Object):
    """A piece of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None


class Message(_Object):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = Field(None, validate_default=True)
    name: str | None = None
    refusal: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = Field(None, fail_fast=True)
    function_call: Call | None = None

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


class JSONSchema(_Object):
    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Object):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JSONSchema | None = Field(None, validate_default=True)

    @field_validator("json_schema")
    @classmethod
    def _there(cls, schema: JSONSchema | None, info: ValidationInfo) -> JSONSchema | None:
        if schema is None and info.data.get("type") == "json_schema":
            raise PydanticCustomError("missing", "it should be an object with a name and a schema")
        return schema


class _Body(_Object):
    model: str = Field(min_length=1)
    user: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)
    service_tier: str = ""
    store: bool = False
    safety_identifier: str = ""
    prompt_cache_key: str = ""


class _Generation(SamplingParameters, _Body):
    stream: bool = False
    stream_options: dict[str, Any] = Field(default_factory=dict)
    logit_bias: Biases = None
    response_format: ResponseFormat | None = None
    use_beam_search: bool = False

    @property
    def greedy(self) -> bool:
        return super().greedy and not self.use_beam_search


class Chat(_Generation):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: list[Tool] = Field(default_factory=list, fail_fast=True)
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


class Completion(_Generation):
    """The body of /v1/completions."""

    prompt: Prompt
    max_tokens: int | None = Field(None, ge=0)  # 0 with `echo`: only the prompt's log-probabilities are wanted
    logprobs: NonNegativeInt | None = None  # type: ignore[assignment]  # here it is a number, in chat a yes or no
    best_of: PositiveInt = 1
    echo: bool = False
    suffix: str = ""


class Embedding(_Body):
    """The body of /v1/embeddings."""

    input: Prompt
    dimensions: PositiveInt | None = None
    encoding_format: Literal["float", "base64"] = "float"


BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": Chat,
    "/v1/completions": Completion,
    "/v1/embeddings": Embedding,
}


def validation_error(endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
    """Return what the endpoint refuses first in `body`, as (param, message); None if it is valid."""
    parameters = {key: value for key, value in body.items() if value is not None}
    try:
        BODIES[endpoint].model_validate(parameters)
    except ValidationError as error:
        # A value of a union type has an error per type; the deepest one says most.
        first = max(invalid_values(error, parameters), key=lambda value: len(value.path))
        path = "body" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first.path)
        return path, f"{path}: {first.reason}."
    return None


def output_limit(endpoint: str, body: dict[str, Any]) -> int | None:
    """Return the most output tokens that a valid body allows; None if it sets no limit."""
    if endpoint == "/v1/embeddings":
        return 0
    limit: int | None = body.get("max_completion_tokens")
    return body.get("max_tokens") if limit is None else limit
