"""Judging: rewards and gates run in processes of their own, which can be killed."""

import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from batchyard.recipes import Check, Checked, Item, Score, Scored, scored
from jobs.running.live_item import ToJudge
from recipes import gates, registry, rewards
from recipes.processes import KillablePool, reason
from recipes.registry import Catalogue

log = logging.getLogger(__name__)

CHUNK_CALLS = 64
Verdict: TypeAlias = Scored | Checked
Work: TypeAlias = tuple[ToJudge, Item]


def judge(catalogue: Catalogue, call: ToJudge, item: Item) -> Verdict:
    """Return the outcome of a call. What a reward or a gate raises becomes the outcome's error."""
    try:
        if isinstance(call, Score):
            reward = catalogue.reward(call.reward)
            return scored(reward(call.data_source, call.solution_str, call.ground_truth, call.extra_info))
        failure = catalogue.gate(call.gate)(call.text, item, call.value)
    except Exception as error:  # noqa: BLE001  it harms its own sample alone
        return failed(call, f"{type(error).__name__}: {error}")
    return Checked(True) if failure is None else Checked(False, failure.category, failure.message)


def is_quick(catalogue: Catalogue, call: ToJudge) -> bool:
    """True for a built-in reward or gate of linear time, which needs no process."""
    if isinstance(call, Check):
        return call.gate in gates.LINEAR and catalogue.gates.get(call.gate) is gates.BUILT_IN[call.gate]
    return call.reward in rewards.LINEAR


def failed(call: ToJudge, reason: str) -> Verdict:
    """Return the outcome of a call whose reward or gate failed."""
    if isinstance(call, Score):
        return Scored(0.0, error=reason)
    return Checked(False, "gate_error", reason)


def has_failed(verdict: Verdict) -> bool:
    """True for the outcome of a call whose reward or gate raised, hung or died."""
    return verdict.error is not None if isinstance(verdict, Scored) else verdict.category == "gate_error"


class Judges:
    def __init__(self, folder: str, processes: int, seconds: float) -> None:
        """`folder`: the deployment's own recipes, empty for none. `seconds`: the longest that one call may take."""
        self._folder = folder
        load = functools.partial(_judge, folder, [])
        self._processes = KillablePool(processes, seconds, load)

    def submit(self, calls: Sequence[Work], done: Callable[[int, Verdict], None]) -> None:
        """Judge calls. `done` gets the index and the outcome of each, in another thread."""
        for start in range(0, len(calls), CHUNK_CALLS):
            self._submit(calls, range(start, min(start + CHUNK_CALLS, len(calls))), done)

    def close(self) -> None:
        self._processes.close()

    def _submit(self, calls: Sequence[Work], indices: range, done: Callable[[int, Verdict], None]) -> None:
        future = self._processes.submit(_judge, self._folder, [calls[index] for index in indices])
        future.add_done_callback(functools.partial(self._ended, calls, indices, done))

    def _ended(
        self, calls: Sequence[Work], indices: range, done: Callable[[int, Verdict], None], future: Future[list[Verdict]]
    ) -> None:
        if future.cancelled():  # this process ends; another judges them
            return
        try:
            outcomes = future.result()
        except Exception as error:  # noqa: BLE001  whatever ended the process, or the pool
            if len(indices) > 1:
                log.warning("judging again, call by call: %s", type(error).__name__, extra={"calls": len(indices)})
                for index in indices:
                    self._submit(calls, range(index, index + 1), done)
                return
            outcomes = [failed(calls[indices[0]][0], reason(error))]
        for index, outcome in zip(indices, outcomes, strict=True):
            done(index, outcome)


def _judge(folder: str, calls: list[tuple[ToJudge, Any]]) -> list[Verdict]:
    catalogue = registry.loaded(folder)
    return [judge(catalogue, call, item) for call, item in calls]
