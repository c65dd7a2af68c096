"""A new batch is judged before the transaction that creates it, and counted in it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from batchyard.errors import RateLimitError
from store import batches, projects, speeds
from store.records import Batch, File, Schedule
from store.speeds import Measurement
from tasks.context import AppContext
from tasks.intake import submission
from tasks.recurring import schedules


def a_batch(project_id: str) -> Batch:
    return Batch(project_id=project_id, endpoint="/v1/chat/completions", completion_window="24h", post_process=[])


@pytest.mark.races
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_admission_holds_no_write_lock_while_redis_hangs(
    new_context: Callable[..., AppContext], new_schedule: Callable[..., Schedule]
) -> None:
    schedule = new_schedule()
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:  # accepts, and never answers
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        context = new_context(redis_url=f"{url}?socket_timeout=60", admission="refuse")
        measurement = Measurement(seconds=60.0, requests=60, bytes=6000, tokens=600, squares=0.0, in_flight=256)
        with context.database.write() as session:
            speeds.measure(speeds.locked(session, "echo", context.models["echo"].config_sha256, "decode"), measurement)
        run = pool.submit(schedules.run_now, context, schedule.project_id, schedule.id)
        silent.settimeout(0.05)
        writes = 0
        while not run.done():
            with suppress(TimeoutError), silent.accept()[0]:  # while it is open, the run waits for Redis
                with context.database.write() as session:  # fails where another holds the lock for seconds
                    batches.expire(session)
                writes += 1
    assert (run.result().state, writes > 0) == ("created", True)


@pytest.mark.races
def test_creates_at_the_same_moment_keep_the_limit_of_a_project_together(
    new_context: Callable[..., AppContext], upload: Callable[[bytes], File]
) -> None:
    source = upload(b"x" * 60)
    context = new_context(max_bytes_in_flight=200)
    together = threading.Barrier(8)

    def create(_: int) -> bool:
        draft = submission.draft(context, a_batch(source.project_id), source)
        together.wait()
        try:
            with context.database.write() as session:
                submission.submit(context, session, draft)
                time.sleep(0.05)  # until the others have counted
        except RateLimitError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 3


@pytest.mark.races
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_create_waits_for_no_other_project(
    new_context: Callable[..., AppContext], upload: Callable[[bytes], File]
) -> None:
    source, context = upload(b"x"), new_context()
    with context.database.write() as session:
        other = projects.get_or_create(session, "other").id
    with ThreadPoolExecutor() as pool, context.database.write() as session:
        submission.submit(context, session, submission.draft(context, a_batch(source.project_id), source))

        def create() -> None:
            with context.database.write() as session:
                submission.submit(context, session, submission.draft(context, a_batch(other), source))

        pool.submit(create).result(timeout=60)
