"""What a recipe is sent, and what it returns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["completed", "failed", "stuck"]


class Result:
    """The end of an item. `values` are JSON; `counters` are summed over the job."""

    def __init__(self, text: str | None = None, counters: Mapping[str, int] | None = None, **values: Any) -> None:
        self.text = text
        self.counters = dict(counters or {})
        self.values = values
        self.state: State = "completed"
        self.error: dict[str, Any] | None = None

    def ended_as(self, state: State, error: dict[str, Any] | None) -> Result:
        """Set state and error, and return this result."""
        self.state, self.error = state, error
        return self

    def __repr__(self) -> str:
        return f"Result({self.state}, text={self.text!r}, error={self.error!r}, values={self.values!r})"


@dataclass(frozen=True)
class Answer:
    """The outcome of an Ask. A request without an answer is not `ok`, and has no text.

    `seconds` are those in the engine. `extra` holds what else the answer has: log-probabilities, token ids, tool calls.
    """

    ok: bool
    text: str = ""
    error: Mapping[str, Any] | None = None
    status_code: int | None = 200
    finish_reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    seconds: float | None = None
    seed: int | None = None
    model: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """The outcome of a Score. `values` is all that the reward said, `acc` and `pred` if it did.

    A reward that raised, hung or crashed has score 0 and an `error`.
    """

    score: float
    acc: float | None = None
    pred: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Checked:
    """The outcome of a Check: the category and the message say why it did not pass."""

    passed: bool
    category: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class Called:
    """The outcome of a Call: what the tool returned, as JSON, or why there is nothing.

    Codes of errors: `tool_not_found`, `invalid_arguments`, `tool_error` (it raised), `tool_timeout`, `tool_crashed`,
    `output_too_large`, `too_many_processes`; and `interrupted`: a crash came between the beginning and the end of a
    call that is to be made once, so nobody knows what came of it.
    """

    ok: bool
    value: Any = None
    error: Mapping[str, Any] | None = None
    seconds: float | None = None

    @classmethod
    def failed(cls, code: str, message: str) -> Called:
        """Return the outcome of a call that has returned nothing."""
        return cls(False, error={"code": code, "message": message})

    @property
    def text(self) -> str:
        """What a model is shown: a text as it is, other values as JSON, an error with its code."""
        if not self.ok:
            error = self.error or {}
            return f"Error: {error.get('code')}: {error.get('message')}"
        return self.value if isinstance(self.value, str) else json.dumps(self.value, ensure_ascii=False)


@dataclass(frozen=True)
class Reply:
    """The outcome of a Wait: category and message say why it failed, `by` who says so."""

    passed: bool
    category: str | None = None
    message: str | None = None
    by: str | None = None


@dataclass(frozen=True)
class Failure:
    """What a gate returns for a text that does not pass."""

    category: str
    message: str
