"""Tools: functions that items and models may call, with limits and what becomes of a call after a crash."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

Mode: TypeAlias = Literal["retriable", "once"]
KEY = "idempotency_key"
"""A parameter of this name gets the key of the call, and is none of its arguments."""


@dataclass(frozen=True)
class Tool:
    """A tool by name."""

    name: str
    function: Callable[..., Any]
    description: str  # what a model is told of it
    parameters: Mapping[str, Any]  # the JSON schema of its arguments, an object
    # `retriable`: a call that a crash may have ended is made again. `once`: it is not, and is `interrupted`.
    mode: Mode = "once"
    seconds: float = 30.0  # of one call
    memory_mb: int = 1024  # that a call may take beyond what its process begins with
    output_bytes: int = 64 * 1024  # of a call's result as JSON

    @property
    def described(self) -> dict[str, Any]:
        """What a model is told of it, as APIs have it."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


class _Untitled(GenerateJsonSchema):
    """JSON schemas without titles, which repeat the names of arguments."""

    def get_title_from_name(self, name: str) -> str:
        return ""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def tool(
    name: str, mode: Mode = "once", *, seconds: float = 30.0, memory_mb: int = 1024, output_bytes: int = 64 * 1024
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function with annotated parameters, which returns JSON. Its docstring is the description.

    The other arguments are those of Tool. An `async` function may be one, too.
    """

    def made(function: Callable[..., Any]) -> Tool:
        callee: Any = function  # the adapter takes functions, too
        schema = TypeAdapter(callee).json_schema(schema_generator=_Untitled)
        schema.get("properties", {}).pop(KEY, None)
        required = [name for name in schema.pop("required", []) if name != KEY]
        return Tool(
            name=name,
            function=function,
            description=inspect.cleandoc(function.__doc__ or ""),
            parameters={**schema, **({"required": required} if required else {})},
            mode=mode,
            seconds=seconds,
            memory_mb=memory_mb,
            output_bytes=output_bytes,
        )

    return made
