"""How many tokens of an engine's KV cache a request will take, learned from the requests that were answered before.

An engine that runs out of cache takes it from a running request, which it computes again later (vLLM: preemption). So
requests enter only as long as what they will need fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BYTES_PER_TOKEN = 4.0
OUTPUT_TOKENS = 256.0
"""What is assumed before the first answer."""


def own_bytes(bodies: Sequence[str]) -> Iterator[int]:
    """Yield the size of each body without the beginning that it shares with the one before it.

    A shared beginning is in the cache once, and bodies with one stand next to each other.
    """
    before = ""
    for body in bodies:
        yield len(body) - _shared(before, body)
        before = body


def _shared(left: str, right: str) -> int:
    """Return the length of the longest common prefix. Slices compare much faster than characters."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low


class CacheNeed:
    """Learns from answers. All of one run, since the lengths of a batch's answers are alike."""

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

    def tokens(self, own_bytes: int) -> int:
        """Return the expected need of a request with so many bytes of its own.

        The output counts with its mean length, or with what requests in flight have on average if that is more: half of
        their length, which is longer than the mean because long ones stay longer (the inspection paradox).
        """
        if not self._answers:
            return round(own_bytes / BYTES_PER_TOKEN + OUTPUT_TOKENS)
        mean = self._output_tokens / self._answers
        in_flight = self._squares / (2 * self._output_tokens) if self._output_tokens else 0.0
        return round(own_bytes * self._input_tokens / self._bytes + max(mean, in_flight))
