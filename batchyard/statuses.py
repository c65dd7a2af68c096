"""The statuses of a batch, with OpenAI's names, and the allowed transitions."""

from __future__ import annotations

from typing import Literal

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]

TRANSITIONS: dict[str, frozenset[str]] = {
    "validating": frozenset({"in_progress", "failed", "cancelling"}),
    "in_progress": frozenset({"finalizing", "cancelling"}),
    "finalizing": frozenset({"completed", "expired", "failed", "cancelling"}),
    "cancelling": frozenset({"cancelled"}),
    "failed": frozenset(),
    "completed": frozenset(),
    "expired": frozenset(),
    "cancelled": frozenset(),
}
TERMINAL = frozenset(status for status, following in TRANSITIONS.items() if not following)
RUNNING = sorted(TRANSITIONS.keys() - TERMINAL)
"""A list, since a database uses its index for `status IN (…)` but not for `NOT IN`."""
