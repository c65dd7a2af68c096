"""Messages (Anthropic's API reference)."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from batchyard.endpoints.bodies.common import BodyObject


class Block(BodyObject):
    """A piece of a message's content. An engine checks what else it holds."""

    type: str = Field(min_length=1)
    text: str | None = None


Content = str | Annotated[list[Block], Field(fail_fast=True)]


class Turn(BodyObject):
    role: Literal["user", "assistant", "system"]
    content: Content

    @field_validator("content")
    @classmethod
    def _there(cls, content: Any) -> Any:
        for block in content if isinstance(content, list) else ():
            if block.type == "text" and block.text is None:
                raise PydanticCustomError("part", "a block of type text should have its content in the key text")
        if not content:
            raise PydanticCustomError("content", "it should be a text or a list of content blocks, not empty")
        return content


def turns(messages: Any) -> Any:
    """Return messages without an empty last one of the assistant, which stands for none."""
    last = messages[-1] if isinstance(messages, list) and len(messages) > 1 else None
    is_empty = isinstance(last, dict) and last.get("role") == "assistant" and last.get("content") in ("", [])
    return messages[:-1] if is_empty else messages


def changes_nothing(name: str, value: Any) -> bool:
    """True for a parameter of the account, and for `context_management` that leaves the messages as they are."""
    if name in ("cache_control", "inference_geo"):
        return True
    edits = value.get("edits") if name == "context_management" and isinstance(value, dict) else None
    return isinstance(edits, list) and all(
        isinstance(edit, dict)
        and edit.get("type") == "clear_thinking_20251015"
        and edit.get("keep") in ("all", {"type": "all"})
        for edit in edits
    )


class OfferedTool(BodyObject):
    name: str = Field(min_length=1)
    description: str = ""
    input_schema: dict[str, Any] | None = None


class Thinking(BodyObject):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1024)


class CountBody(BodyObject):
    """The body of /v1/messages/count_tokens."""

    model: str = Field(min_length=1)
    messages: Annotated[list[Turn], Field(min_length=1, fail_fast=True), BeforeValidator(turns)]
    system: Content = ""
    tools: list[OfferedTool] = Field(default_factory=list, fail_fast=True)
    tool_choice: dict[str, Any] = Field(default_factory=dict)
    thinking: Thinking | None = None
    output_config: dict[str, Any] = Field(default_factory=dict)


class MessagesBody(CountBody):
    """The body of /v1/messages."""

    max_tokens: int = Field(ge=1)
    temperature: float = Field(1.0, ge=0, le=1)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    stop_sequences: list[str] = Field(default_factory=list, fail_fast=True)
    metadata: dict[str, Any] = Field(default_factory=dict)
    service_tier: str = ""
    stream: bool = False
