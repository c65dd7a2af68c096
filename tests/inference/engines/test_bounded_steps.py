"""The time of a step is learnt from what is in it."""

from __future__ import annotations

import random

import pytest

from inference.engines.bounded_steps import StepTime

STEP, REQUEST, TOKEN = 0.06, 0.005, 0.004
"""What a step takes, each of its requests, and each further token of a prompt."""


def test_the_time_of_a_step_is_learnt_from_what_is_in_it() -> None:
    chance, time = random.Random(1), StepTime()
    for _ in range(300):
        requests, further, context = chance.randint(1, 16), chance.choice([0, 0, 30, 90]), chance.randint(10, 2000)
        seconds = STEP + REQUEST * requests + TOKEN * further + 1e-5 * context
        time.learn((1, requests, further, context), seconds * chance.uniform(0.9, 1.1))
    assert time.seconds((1, 8, 50, 500)) == pytest.approx(STEP + 8 * REQUEST + 50 * TOKEN + 0.005, rel=0.05)


def test_steps_that_are_all_alike_give_no_cost_below_zero() -> None:
    time = StepTime()
    for seconds in (0.1, 0.2, 0.1, 0.15) * 20:
        time.learn((1, 16, 0, 900), seconds)
    assert min(time.costs) >= 0
    assert time.seconds((1, 16, 0, 900)) == pytest.approx(0.14, rel=0.1)
