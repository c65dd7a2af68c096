"""A batch whose model is idle does not wait for a long batch of another model."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.faulty import SEGMENT
from tests.support.rows import until
from tests.support.stacks import PATIENCE, RunningStack, a_chat

SEGMENTS = 100


def test_an_idle_model_has_its_first_request_soon_while_a_hundred_segments_of_another_wait(
    faulty: RunningStack, faulty_calls: Path
) -> None:
    calls = faulty_calls.with_name("calls-of-idle")
    warm = faulty.wait(faulty.submit([a_chat("warm", "warm", model="idle")]))
    assert warm.status == "completed"
    requests = [a_chat(f"id-{number}", f"hello {number}", model="busy") for number in range(SEGMENT * SEGMENTS)]
    busy = faulty.wait(
        faulty.submit(requests, completion_window="1h"), until=lambda batch: batch.request_counts.completed > 0
    )

    def seconds_to_first_request() -> float:
        calls.unlink()
        began = time.monotonic()
        one = faulty.submit([a_chat("id", "hello", model="idle")], completion_window="24h")
        until(calls.exists)
        seconds = time.monotonic() - began
        assert faulty.wait(one).status == "completed"
        return seconds

    # What else runs on the machine may hold one of them up.
    assert any(seconds_to_first_request() < 10 * PATIENCE for _ in range(3))
    busy = faulty.client.batches.retrieve(busy.id)
    assert busy.status == "in_progress"
    assert faulty.wait(faulty.client.batches.cancel(busy.id)).status == "cancelled"
