"""Completions of a text (OpenAI's API reference)."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveInt

from batchyard.endpoints.bodies.common import Generation, Prompt


class CompletionBody(Generation):
    """The body of /v1/completions."""

    prompt: Prompt
    max_tokens: int | None = Field(None, ge=0)  # 0 with `echo`: only the prompt's log-probabilities are wanted
    logprobs: NonNegativeInt | None = None  # type: ignore[assignment]  # here it is a number, in chat a yes or no
    best_of: PositiveInt = 1
    echo: bool = False
    suffix: str = ""
