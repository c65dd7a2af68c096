"""What the bodies of several endpoints have in common (OpenAI's API reference).

Other keys are ignored here: an engine refuses those that it does not support (`Engine.unsupported`). Null means absent,
as it does to the engines.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from batchyard.endpoints.bodies.sampling import SamplingParameters


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


class BodyObject(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class JSONSchema(BodyObject):
    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BodyObject):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JSONSchema | None = Field(None, validate_default=True)

    @field_validator("json_schema")
    @classmethod
    def _there(cls, schema: JSONSchema | None, info: ValidationInfo) -> JSONSchema | None:
        if schema is None and info.data.get("type") == "json_schema":
            raise PydanticCustomError("missing", "it should be an object with a name and a schema")
        return schema


class Body(BodyObject):
    model: str = Field(min_length=1)
    user: str = ""
    metadata: dict[str, str] = Field(default_factory=dict)
    service_tier: str = ""
    store: bool = False
    safety_identifier: str = ""
    prompt_cache_key: str = ""


class StreamOptions(BodyObject):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class Streaming(BodyObject):
    stream: bool = False
    stream_options: StreamOptions | None = None


class Generation(Streaming, SamplingParameters, Body):
    logit_bias: Biases = None
    response_format: ResponseFormat | None = None
    use_beam_search: bool = False

    @property
    def greedy(self) -> bool:
        return super().greedy and not self.use_beam_search
