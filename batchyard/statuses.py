"""OpenAI's names: statuses of batches and jobs, allowed transitions.

Priorities and the states of a job's items are Batchyard's own.
"""

from typing import Literal, get_args

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
JobStatus = Literal["waiting", Status]

TRANSITIONS: dict[str, frozenset[str]] = {
    "validating": frozenset({"in_progress", "failed", "cancelling"}),
    "in_progress": frozenset({"finalizing", "cancelling"}),
    "finalizing": frozenset({"completed", "expired", "failed", "cancelling"}),
    "cancelling": frozenset({"cancelled"}),
    **dict.fromkeys(("failed", "completed", "expired", "cancelled"), frozenset[str]()),
}
TERMINAL = frozenset(status for status, following in TRANSITIONS.items() if not following)
RUNNING = sorted(TRANSITIONS.keys() - TERMINAL)
"""A list, since a database uses its index for `status IN (…)` but not for `NOT IN`."""

PAUSABLE = ("validating", "in_progress")
"""A batch with one of these statuses may have requests that were not sent: it can be paused, and its order changed."""

Priority = Literal["background", "low", "normal", "high"]
PRIORITIES: dict[Priority, int] = {"background": -2, "low": -1, "normal": 0, "high": 1}
BACKGROUND = PRIORITIES["background"]
"""A batch of this priority has only what no other work needs, of any project; the others order a project's own."""


def priority_name(number: int) -> Priority:
    return next(name for name, value in PRIORITIES.items() if value == number)


JOB_TRANSITIONS: dict[str, frozenset[str]] = {
    **TRANSITIONS,
    "waiting": frozenset({"validating", "finalizing", "cancelling"}),
    "validating": frozenset({"in_progress", "failed", "finalizing", "cancelling"}),
}
"""A job waits for what it depends on. Its window may end before its items are known."""
JOB_PAUSABLE = ("waiting", *PAUSABLE)
JOB_RUNNING = sorted(JOB_TRANSITIONS.keys() - TERMINAL)

RetriableState = Literal["failed", "stuck", "expired", "cancelled"]
ItemState = Literal["pending", "live", "waiting_for_verdict", "completed", RetriableState]
ITEM_STATES: tuple[ItemState, ...] = get_args(ItemState)
"""The states of a job's item; those of items that have not ended come first."""
RETRIABLE_STATES: tuple[RetriableState, ...] = get_args(RetriableState)
"""The states of ended items that a retry takes."""
NEVER_ENDED = {"expired": "expired", "cancelled": "cancelled", "failed": "cancelled", "completed": "cancelled"}
"""The state of items that have not ended, by the job's outcome."""
AfterDeath = Literal["starts_again", "runs_again", "runs_alone", "request_fails", "ends_run"]
"""What follows the death of an engine: it starts again, with nothing to repeat; its requests run again, or again with
nothing else in the engine; the one request that was in it is answered with an error; or the run ends."""
