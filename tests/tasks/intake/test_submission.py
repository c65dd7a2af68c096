"""A new batch is judged before the transaction that creates it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from store import batches, speeds
from store.records import Schedule
from store.speeds import Measurement
from tasks.context import AppContext
from tasks.recurring import schedules


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_admission_holds_no_write_lock_while_redis_hangs(
    new_context: Callable[..., AppContext], new_schedule: Callable[..., Schedule]
) -> None:
    schedule = new_schedule()
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:  # accepts, and never answers
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        context = new_context(redis_url=f"{url}?socket_timeout=1", admission="refuse")
        measurement = Measurement(seconds=60.0, requests=60, bytes=6000, tokens=600)
        with context.database.write() as session:
            speeds.measure(session, "echo", context.models["echo"].config_sha256, "decode", measurement)
        run = pool.submit(schedules.run_now, context, schedule.project_id, schedule.id)
        waits = []
        while not run.done():
            began = time.monotonic()
            with context.database.write() as session:
                batches.expire(session)
            waits.append(time.monotonic() - began)
            time.sleep(0.01)
    assert run.result().state == "created"
    assert max(waits) < 0.5
