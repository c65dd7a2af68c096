"""OpenAI's names: the endpoints of requests, the statuses of a batch and of a job, and the allowed transitions."""

from __future__ import annotations

from typing import Literal, get_args

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
JobStatus = Literal[
    "waiting",
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]

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

JOB_TRANSITIONS: dict[str, frozenset[str]] = {
    **TRANSITIONS,
    "waiting": frozenset({"validating", "finalizing", "cancelling"}),
    "validating": frozenset({"in_progress", "failed", "finalizing", "cancelling"}),
}
"""A job waits for what it depends on. Its window may end before its items are known."""
JOB_RUNNING = sorted(JOB_TRANSITIONS.keys() - TERMINAL)
