"""The shortest time in which slots can decode answers of known lengths."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence


def listed(lengths: Iterable[int], slots: int) -> int:
    """Return the steps until the last answer ends: each answer in turn takes the slot that is free first.

    This is list scheduling (Graham 1966). It is what an engine does with requests in this order that is never without
    one. `lengths` are in tokens, and a step decodes one token in every slot.
    """
    free_at = [0] * slots
    for length in lengths:
        heapq.heapreplace(free_at, free_at[0] + length)
    return max(free_at)


def bound(lengths: Sequence[int], slots: int) -> float:
    """Return the steps below which no order ends: all slots always full, or the longest answer alone."""
    return max(sum(lengths) / slots, max(lengths, default=0))
