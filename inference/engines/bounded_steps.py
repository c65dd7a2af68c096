"""The bound of an engine's steps beside live requests.

Each token of a live request waits for the whole step that computes it, and engines fill steps with prompts. While live
and batch requests are in the engine, a bounded scheduler gives live ones what they need, and batches as many tokens as
the step has time for. It learns how long a step takes from the steps before.
"""

import math
import os
from collections import defaultdict, deque
from collections.abc import Sequence
from operator import mul
from time import monotonic
from typing import Any

import numpy as np

LIVE, BATCH = 0, 1
"""Priorities of requests. Answers come before prompts, and among either the lower priority first.

The lower priority is also the last to lose its KV cache.
"""
STEP_SECONDS = "BATCHYARD_STEP_SECONDS"
"""The variable with the target of a step beside live requests, which vLLM's scheduler reads in the engine's process."""
LEAST_SHARE = 1 / 10
"""Batches get this share of a step's time at least, even if live requests alone take longer than its target.

A target that live requests alone miss would take batches' throughput and make no token come earlier.
"""
LEAST_PROMPTS = 1 / 2
"""Least share of live prompts in a step, even beyond its target. With less, live requests queue up."""
SAMPLED = 8
"""Without live requests, one step of so many is measured.

That adds 0.2 % to the steps of a model with 1 M parameters on two CPUs, and less to longer ones.
"""
FIRST = 64
"""The first so many steps are all measured, so that the costs are known before live requests come."""
KEPT = 16
"""The latest so many steps of each kind teach. Kinds that have become rare stay known."""
NEGLIGIBLE = 0.02
"""Relative deviations below this one count alike."""
QUICKEST = 1 / 5
"""A step counts as this share of the expected time at least: one that ends with a late one seems to take no time."""
INERTIA = 1e-3
"""How strongly costs that the steps hardly tell apart stay as they are."""


class StepTime:
    """Learns the time of a step from its content: least absolute deviations, without negative costs.

    A content is (1, requests, tokens beyond one per request, tokens of context), and `costs` are the seconds of each.
    Deviations are relative, and not squared, so that steps which other processes held up hardly count. Each step is one
    round of iteratively reweighted least squares.
    """

    def __init__(self) -> None:
        self.costs = [0.0] * 4
        # A row per step: its content, divided by its seconds.
        self._steps = np.empty((0, 4))
        self._rows: defaultdict[tuple[int, ...], deque[int]] = defaultdict(deque)

    def learn(self, content: Sequence[int], seconds: float) -> None:
        """Learn from a step. Costs that the steps do not tell apart stay near what they were."""
        rows = self._rows[tuple(amount.bit_length() for amount in content[1:3])]
        if len(rows) < KEPT:
            rows.appendleft(len(self._steps))
            self._steps = np.vstack((self._steps, np.zeros(4)))
        self._steps[rows[0]] = np.array(content) / max(seconds, QUICKEST * self.seconds(content), 1e-9)
        rows.rotate()
        weighted = self._steps.T / np.maximum(np.abs(self._steps @ self.costs - 1), NEGLIGIBLE)
        products, sums = weighted @ self._steps, weighted.sum(axis=1)
        inertia = INERTIA * products.diagonal()
        products, sums = products + np.diag(inertia), sums + inertia * self.costs
        positive = inertia > 0
        while True:
            costs = np.zeros(4)
            costs[positive] = np.linalg.solve(products[np.ix_(positive, positive)], sums[positive])
            if (costs >= 0).all():
                break
            positive &= costs > 0
        self.costs = costs.tolist()

    def seconds(self, content: Sequence[float]) -> float:
        """Return the expected time of a step."""
        return float(sum(map(mul, content, self.costs)))


class BoundedSteps:
    """Bounds the steps of a scheduler with vLLM's methods. `next_decode_eligible_step` leaves a request out of some."""

    current_step: int
    max_num_scheduled_tokens: int
    num_spec_tokens = 0
    requests: dict[Any, Any]
    running: list[Any]
    clock = staticmethod(monotonic)

    def __init__(self, *args: Any, target: float | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._target = float(os.environ[STEP_SECONDS]) if target is None else target
        self._most = self.max_num_scheduled_tokens
        self._live: dict[Any, Any] = {}
        self._time = StepTime()
        self._unmeasured: list[tuple[Any, tuple[int, ...], float]] = []
        self._updated_at = 0.0
        # After a step without tokens none is held back: live requests may wait for the blocks of the ones that were.
        self._advancing = True

    def add_request(self, request: Any) -> None:
        super().add_request(request)  # type: ignore[misc]
        if request.priority == LIVE:
            self._live[request.request_id] = request

    def schedule(self, *args: Any, **options: Any) -> Any:
        began = self.clock()
        if self._live:
            self._live = {name: request for name, request in self._live.items() if name in self.requests}
        if 0 < len(self._live) < len(self.requests):
            self.max_num_scheduled_tokens = max(1, min(self._most, self._bound()))
        output = super().schedule(*args, **options)  # type: ignore[misc]
        self.max_num_scheduled_tokens = self._most
        scheduled = output.num_scheduled_tokens
        self._advancing = bool(scheduled)
        if scheduled and (self._live or self.current_step < FIRST or self.current_step % SAMPLED == 0):
            context = sum(self.requests[name].num_computed_tokens for name in scheduled)
            content = 1, len(scheduled), output.total_num_scheduled_tokens - len(scheduled), context
            # vLLM has two steps under way at most, or one per stage of a pipeline.
            self._unmeasured = [*self._unmeasured[-16:], (output, content, began)]
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **options: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, *args, **options)  # type: ignore[misc]
        now = self.clock()
        for number, (output, content, began) in enumerate(self._unmeasured):
            if output is scheduler_output:
                self._time.learn(content, now - max(began, self._updated_at))
                del self._unmeasured[: number + 1]
                break
        self._updated_at = now
        return outputs

    def _bound(self) -> int:
        """Return the tokens of the next step, and hold back the batches' requests for which it has no time."""
        live = self._live.values()
        all_needed = [_needed(request) for request in live]
        # Tokens of prompts, in the order of their arrival: more than a token and what was drafted after it.
        further = [max(0, tokens - 1 - self.num_spec_tokens) for tokens in all_needed]
        tokens = sum(all_needed) - sum(further)
        context = sum(request.num_computed_tokens for request in live)
        taken = self._time.seconds((1, len(live), max(0, tokens - len(live)), context))
        target = max(self._target, taken / (1 - LEAST_SHARE))
        # The first prompt is computed whole. Others that came with it would delay each token by as much again.
        fitting = max(next(filter(None, further), 0), self._fitting(target - taken, 0))
        prompts = max(fitting, math.ceil(LEAST_PROMPTS * sum(further)))
        entering = sum(further) > prompts or len(live) > sum(request.priority == LIVE for request in self.running)
        prompts = min(sum(further), prompts)
        tokens = min(self._most, tokens + prompts)
        left = max(target - taken - self._time.costs[2] * prompts, LEAST_SHARE * target)
        # vLLM goes through the running requests in this order, and then through those that wait.
        self.running.sort(key=lambda request: (request.is_prefill_chunk, request.priority))
        for request in self.running:
            if request.priority == LIVE:
                continue
            needed = _needed(request)
            given = min(needed, self._fitting(left, request.num_computed_tokens))
            # A part of a prompt would take all that live requests leave, which enter after it.
            if given < needed and (entering or not request.is_prefill_chunk):
                given = 0
            if given:
                tokens += given
                left -= self._time.seconds((0, 1, given - 1, request.num_computed_tokens))
            elif self._advancing:
                later = self.current_step + 2
                request.next_decode_eligible_step = max(request.next_decode_eligible_step, later)
        return tokens if entering else tokens + self._fitting(left, 0)

    def _fitting(self, seconds: float, context: int) -> int:
        """Return how many tokens of one request a step computes in this time."""
        further = self._time.costs[2]
        rest = seconds - self._time.seconds((0, 1, 0, context))
        if rest < 0:
            return 0
        return self._most if further * self._most <= rest else 1 + math.floor(rest / further)


def _needed(request: Any) -> int:
    """Return the tokens that vLLM computes of a request in a step without bound."""
    needed: int = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
    return max(0, needed)
