"""Guards: parameters of requests that let an engine end an answer which goes wrong."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from batchyard.endpoints.catalog import CHAT, COMPLETIONS

Guard = Literal["repetition"]
GUARDED = (CHAT.path, COMPLETIONS.path)
"""The endpoints on which vLLM ends answers that repeat themselves."""
REPETITION = {"repetition_detection": {"min_pattern_size": 32, "max_pattern_size": 64, "min_count": 4}}
"""The parameter of guard `repetition`: an answer ends with four times the same 32 to 64 tokens.

A shorter pattern that repeats is one of these, too: rulers and rows of zeros are allowed 128 tokens. vLLM compares at
each token for each size, so there are no more sizes than it takes.
"""
MOST = 128
"""Greatest size and count of a request's own: vLLM compares in the loop that all its requests share."""


class RepetitionDetection(BaseModel):
    """vLLM's parameter: an answer ends once its last tokens are `min_count` times the same pattern."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_pattern_size: int = Field(0, ge=0, le=MOST)
    min_pattern_size: int = Field(0, ge=0, le=MOST)
    min_count: int = Field(0, ge=0, le=MOST)

    def found(self, tokens: Sequence[int]) -> bool:
        """Return True if the tokens end in a repetition, as vLLM's scheduler does."""
        if self.min_count < 2:
            return False
        sizes = range(max(1, self.min_pattern_size), min(self.max_pattern_size, len(tokens) // self.min_count) + 1)
        lengths = ((size, size * (self.min_count - 1)) for size in sizes if tokens[-1] == tokens[-1 - size])
        return any(tokens[-length:] == tokens[-length - size : -size] for size, length in lengths)


def guarded(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body with the parameter of guard `repetition`, unless it says its own, or null."""
    return REPETITION | body
