"""What an endpoint of the inference API is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pydantic import BaseModel

ACCOUNT = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""OpenAI's parameters of the caller's account."""
AnswerForm = Literal["json", "regex", "choice", "grammar"]
"""What the text of an answer may be held to."""
Result = Literal["text", "vectors", "labels", "scores", "tokens"]

MOST_TOKENS = 2**40
"""A larger limit counts as this one: sums of them would not fit into the integers of databases."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Endpoint:
    """One endpoint."""

    path: str  # the `url` of a request's line
    aliases: tuple[str, ...] = ()  # other paths that mean the same
    body_class: str  # the model in `batchyard.endpoints.bodies` that checks a body, as `module:class`
    content: tuple[str, ...]  # keys of a body that may hold its prompt. A body has some of them.
    leading: tuple[str, ...] = ()  # keys that are rendered before the prompt, such as `tools`
    system: str | None = None  # the key of the instructions; None if they are a message, or there can be none
    without_effect: frozenset[str] = ACCOUNT  # keys that a request of a batch may have, and that change no answer
    # Keys that limit the tokens of an answer; the first that is set counts. `object.key` is inside an object of the
    # body.
    output_limits: tuple[str, ...] = ()
    result: Result  # what an answer holds
    example: Mapping[str, Any]  # a small body, without its model, with which an engine is tried

    @property
    def generates(self) -> bool:
        """True if it samples tokens. So an answer may be random, and engines cache what prompts share."""
        return bool(self.output_limits)

    @cached_property
    def body(self) -> type[BaseModel]:
        """The model that checks a body without its null values. It is imported at its first use."""
        module, _, name = self.body_class.partition(":")
        model: type[BaseModel] = getattr(import_module(f"batchyard.endpoints.bodies.{module}"), name)
        return model

    def leading_values(self, body: Mapping[str, Any]) -> list[Any]:
        """Return what is rendered before the prompt; None for what the body leaves empty."""
        return [body.get(key) or None for key in self.leading]

    def contents(self, body: Mapping[str, Any]) -> list[Any]:
        return [body[key] for key in self.content if body.get(key) is not None]

    def content_key(self, body: Mapping[str, Any]) -> str:
        return next((key for key in self.content if body.get(key) is not None), self.content[0])

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return the most output tokens that a valid body allows, MOST_TOKENS at most; None if it sets no limit."""
        if not self.generates:
            return 0
        key = self.limit_key(body)
        return None if key is None else min(_value(body, key), MOST_TOKENS)

    def limit_key(self, body: Mapping[str, Any]) -> str | None:
        """Return the key that sets the limit of `body`; None if none does."""
        return next((key for key in self.output_limits if _value(body, key) is not None), None)


def _value(body: Mapping[str, Any], key: str) -> Any:
    outer, _, inner = key.rpartition(".")
    return ((body.get(outer) or {}) if outer else body).get(inner)
