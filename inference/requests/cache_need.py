"""The tokens that a request will take in an engine's KV cache, learned from earlier answers.

An engine that runs out of cache takes it from a running request, which it computes again later (vLLM: preemption). So
requests enter only as long as what they will need fits.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inference.requests import media

BYTES_PER_TOKEN = 4.0
OUTPUT_TOKENS = 256.0
"""What is assumed before the first answer, of a request that may have so many."""


def unshared_bytes(bodies: Sequence[str]) -> Iterator[int]:
    """Yield the size of each body without the beginning that it shares with the one before it.

    A shared beginning is in the cache once, and bodies with one stand next to each other. Media count nothing: their
    tokens do not follow from their size.
    """
    before = ""
    for body in map(media.without_data, bodies):
        # The longest common prefix by bisection: slices compare much faster than characters.
        low, high = 0, min(len(before), len(body))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if before[low:middle] == body[low:middle] else (low, middle - 1)
        yield len(body) - low
        before = body


def most_output(request: Mapping[str, Any]) -> float:
    """Return how many output tokens a request may have, all its choices together; infinity if it does not say."""
    limit = _positive(request.get("max_completion_tokens")) or _positive(request.get("max_tokens")) or math.inf
    return float(limit * (_positive(request.get("n")) or 1))


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 < value < 2**53 else None


class CacheNeed:
    """Learns from answers. All of one session, since the lengths of a batch's answers are alike."""

    def __init__(self) -> None:
        self._bytes = 0
        self._input_tokens = 0
        self._answers = 0
        self._output_tokens = 0
        self._squares = 0

    def learn(self, size: int, input_tokens: int, output_tokens: int) -> None:
        """Add an answer to a body of `size` characters. One without tokens says nothing."""
        if input_tokens:
            self._bytes += size
            self._input_tokens += input_tokens
            self._answers += 1
            self._output_tokens += output_tokens
            self._squares += output_tokens**2

    def tokens(self, unshared_bytes: int, most_output: float) -> int:
        """Return the need to expect of a request, by unshared bytes and output limit.

        The output counts with its mean length, or with what requests in flight have on average if that is more: half of
        their length, which is longer than the mean because long ones stay longer (the inspection paradox).
        """
        if not self._answers:
            return round(unshared_bytes / BYTES_PER_TOKEN + min(OUTPUT_TOKENS, most_output))
        mean = self._output_tokens / self._answers
        in_flight = self._squares / (2 * self._output_tokens) if self._output_tokens else 0.0
        return round(unshared_bytes * self._input_tokens / self._bytes + min(max(mean, in_flight), most_output))
