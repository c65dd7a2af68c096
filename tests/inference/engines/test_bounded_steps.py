"""The time of a step is learnt from what is in it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from inference.engines.bounded_steps import BATCH, LIVE, BoundedSteps, StepTime

STEP, REQUEST, TOKEN = 0.06, 0.005, 0.004
"""What a step takes, each of its requests, and each further token of a prompt."""


def test_the_time_of_a_step_is_learnt_from_what_is_in_it() -> None:
    chance, time = random.Random(1), StepTime()
    for _ in range(300):
        requests, further, context = chance.randint(1, 16), chance.choice([0, 0, 30, 90]), chance.randint(10, 2000)
        seconds = STEP + REQUEST * requests + TOKEN * further + 1e-5 * context
        time.learn((1, requests, further, context), seconds * chance.uniform(0.9, 1.1))
    assert time.seconds((1, 8, 50, 500)) == pytest.approx(STEP + 8 * REQUEST + 50 * TOKEN + 0.005, rel=0.05)


def test_steps_that_other_processes_hold_up_hardly_change_the_expected_time() -> None:
    chance, time = random.Random(1), StepTime()
    for number in range(300):
        requests, further = chance.randint(1, 16), chance.choice([0, 0, 30])
        # The first ones all, as long as other processes start, and a fifth of those after them.
        held_up = 4 if number < 10 or number % 5 == 0 else 1
        time.learn((1, requests, further, 10), (STEP + REQUEST * requests + TOKEN * further) * held_up)
    assert time.seconds((1, 8, 30, 10)) == pytest.approx(STEP + 8 * REQUEST + 30 * TOKEN, rel=0.02)


def test_steps_that_end_with_a_late_one_hardly_change_the_expected_time() -> None:
    chance, time = random.Random(1), StepTime()
    for number in range(300):
        requests = chance.randint(1, 16)
        seconds = STEP + REQUEST * requests
        time.learn((1, requests, 0, 10), 0.0002 if number % 20 == 19 else seconds * (2 if number % 20 == 18 else 1))
    assert time.seconds((1, 8, 0, 10)) == pytest.approx(STEP + 8 * REQUEST, rel=0.02)


def test_the_time_of_steps_that_have_become_rare_stays_known() -> None:
    chance, time = random.Random(1), StepTime()
    for number in range(2000):
        requests = 16 if number < 50 else chance.randint(1, 2)
        time.learn((1, requests, 0, 10 * requests), (STEP + REQUEST * requests) * chance.uniform(0.9, 1.1))
    assert time.seconds((1, 16, 0, 160)) == pytest.approx(STEP + 16 * REQUEST, rel=0.05)


def test_a_machine_that_becomes_slower_for_good_is_noticed() -> None:
    chance, time = random.Random(1), StepTime()
    for number in range(420):
        requests = chance.randint(1, 16)
        time.learn((1, requests, 0, 10), (STEP + REQUEST * requests) * (1 if number < 120 else 2))
    assert time.seconds((1, 8, 0, 10)) == pytest.approx(2 * (STEP + 8 * REQUEST), rel=0.05)


def test_steps_that_are_all_alike_give_no_cost_below_zero() -> None:
    time = StepTime()
    for seconds in (0.1, 0.2, 0.1, 0.15) * 20:
        time.learn((1, 16, 0, 900), seconds)
    assert min(time.costs) >= 0
    assert time.seconds((1, 16, 0, 900)) == pytest.approx(0.1, rel=0.05), "half of the steps, which weigh most"


class Drafting:
    """A scheduler that drafts three tokens after each, and has all it may in every step."""

    max_num_scheduled_tokens, current_step = 1000, 0

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.num_spec_tokens, self.allowed = 3, 0

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request
        self.running.append(request)

    def schedule(self) -> Any:
        self.allowed = self.max_num_scheduled_tokens
        scheduled = dict.fromkeys(self.requests, 4)
        return SimpleNamespace(num_scheduled_tokens=scheduled, total_num_scheduled_tokens=4 * len(scheduled))

    def update_from_output(self, output: Any) -> None:
        """Nothing is counted: each step is as the one before."""


class BoundedDrafting(BoundedSteps, Drafting):
    now = 0.0

    def clock(self) -> float:
        return self.now


def test_what_was_drafted_for_live_requests_is_in_the_step_even_if_it_ends_late() -> None:
    steps = BoundedDrafting(target=0.001)
    for number, priority in enumerate([LIVE] * 10 + [BATCH] * 10):
        tokens = {"num_tokens_with_spec": 104, "num_output_placeholders": 0, "num_computed_tokens": 100}
        place = {"is_prefill_chunk": False, "next_decode_eligible_step": 0}
        steps.add_request(SimpleNamespace(request_id=str(number), priority=priority, **tokens, **place))
    for _ in range(5):
        output = steps.schedule()
        steps.now += 0.1
        steps.update_from_output(output)
    assert 4 * 11 <= steps.allowed <= 4 * 10 * 1.25, "with batch requests in what they leave, and no more"
