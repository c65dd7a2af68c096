"""An ETA can be believed, on a real stack: it says how little it knows, and then it knows."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.stacks import RunningStack, a_chat


def eta(batch: Any) -> tuple[float, float, float]:
    """The ETA and its range as times, read just now."""
    now, ours = time.time(), batch.batchyard
    assert ours["eta_seconds"] is not None
    return now + ours["eta_seconds"], now + ours["eta_earliest_seconds"], now + ours["eta_latest_seconds"]


def requests(number: int, prefix: str) -> list[dict[str, Any]]:
    return [a_chat(f"{prefix}-{index}", f"{prefix} {index}", model="paced") for index in range(number)]


# tests/tasks/scheduling/test_throughput.py says the same in simulated time, where no busy machine changes its speed.
@pytest.mark.exhaustive
def test_after_eight_requests_the_end_of_twelve_hundred_lies_in_the_range(stack: RunningStack) -> None:
    """They take 19 s in the engine. What was measured before, by this test alone, was nearly all fixed cost."""
    stack.wait(stack.submit(requests(8, "few")))
    batch = stack.submit(requests(1200, "many"))
    at_first, all_from = eta(batch), time.time()
    batch = stack.wait(batch, until=lambda batch: batch.request_counts.completed >= 300)
    at_a_quarter, left_from = eta(batch), time.time()
    batch = stack.wait(batch)
    ended = time.time()
    assert batch.request_counts.completed == 1200
    # With nothing else to do the error is below 0.15 and the factor below 2. On a busy machine the few may have run at
    # a quarter of the speed of the many, or at four times it.
    whole, (_, earliest, latest) = ended - all_from, at_first
    assert (earliest - all_from) / 4 < whole < 4 * (latest - all_from), [moment - ended for moment in at_first]
    expected, earliest, latest = at_a_quarter
    left = ended - left_from
    assert earliest - 0.3 * left < ended < latest + 0.3 * left, [moment - ended for moment in at_a_quarter]
    assert abs(expected - ended) < left, [moment - ended for moment in at_a_quarter]
    assert (latest - left_from) / (earliest - left_from) < 3, [moment - ended for moment in at_a_quarter]
