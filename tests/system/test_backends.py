"""Batches on PostgreSQL and S3 survive both: what is away is named meanwhile, and costs no request."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from batchyard.statuses import TERMINAL
from tests.support import postgresql
from tests.support.s3 import S3Server
from tests.support.stacks import PATIENCE, RunningStack, a_chat

AWAY_SECONDS = 5.0
"""As long as a lease."""
ROWS = 1200


class PostgreSQL:
    """A server of the test's own, which can be killed."""

    def __init__(self, folder: Path) -> None:
        self.server = postgresql.server_in(folder)
        self.url = self.server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)

    def kill(self) -> None:
        """End the server, which can end no connection properly."""
        process = psutil.Process(int(self.server.get_pid() or 0))
        processes = [process, *process.children(recursive=True)]
        for member in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(processes, 120)

    def start(self) -> None:
        self.server.ensure_postgres_running()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgreSQL]:
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    server = PostgreSQL(folder)
    yield server
    server.server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def own_s3() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def served(start_stack: Callable[..., RunningStack], postgres: PostgreSQL, own_s3: S3Server) -> RunningStack:
    models = """
[models.echo]
engine = "echo"
max_in_flight = 64
[models.echo.engine_args]
latency_ms = 250
"""
    return start_stack(
        models,
        BATCHYARD_ALLOW_SIMULATED="1",
        BATCHYARD_LEASE_SECONDS="5",
        BATCHYARD_SEGMENT_REQUESTS="600",
        BATCHYARD_SEGMENT_ATTEMPTS="1",
        DATABASE_URL=postgres.url,
        ARTIFACTS_URL=own_s3.url("served"),
        **own_s3.environment,
    )


def submit(stack: RunningStack, **options: Any) -> Any:
    return stack.submit([a_chat(f"id-{number}", f"{number}") for number in range(ROWS)], **options)


def half_way(batch: Any) -> bool:
    counts = batch.request_counts
    return bool(counts.total) and counts.completed > counts.total / 3


def assert_complete(stack: RunningStack, batch: Any) -> None:
    """Every line has one answer, and no error came of what was away."""
    assert batch.status == "completed", batch.to_json()
    assert batch.request_counts.to_dict() == {"total": ROWS, "completed": ROWS, "failed": 0}
    lines = stack.lines(batch.output_file_id)
    assert Counter(line["custom_id"] for line in lines) == {f"id-{number}": 1 for number in range(ROWS)}


def assert_named(stack: RunningStack, part: str) -> None:
    """/readyz says that the part is away, as soon as it has asked again."""
    deadline = time.monotonic() + PATIENCE * 45
    while httpx.get(f"{stack.url}/readyz", timeout=60).json()["parts"][part] == "ok":
        assert time.monotonic() < deadline, part
        time.sleep(0.05)


@contextlib.contextmanager
def away(stop: Callable[[], None], start: Callable[[], None]) -> Iterator[None]:
    """A server is away during the block, and for AWAY_SECONDS at least."""
    stop()
    try:
        began = time.monotonic()
        yield
        time.sleep(max(0.0, began + AWAY_SECONDS - time.monotonic()))
    finally:
        start()


def wait_patiently(stack: RunningStack, batch: Any, seconds: float = 120) -> Any:
    """Wait for a batch's end while the server may answer 503, and nothing else."""
    deadline = time.monotonic() + PATIENCE * seconds
    while batch.status not in TERMINAL:
        assert time.monotonic() < deadline, batch.to_json()
        time.sleep(0.05)
        try:
            batch = stack.client.batches.retrieve(batch.id)
        except openai.APIStatusError as error:
            assert error.status_code == 503, error
    return batch


def live_answers(stack: RunningStack, number: int) -> Counter[int]:
    """Send live requests one after the other; return their statuses, counted."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"Authorization": f"Bearer {stack.key}"}
    with httpx.Client(headers=headers, timeout=60) as client:
        return Counter(client.post(f"{stack.url}/v1/chat/completions", json=body).status_code for _ in range(number))


def test_a_batch_survives_five_seconds_without_postgresql_and_live_requests_do_not_wait_for_it(
    served: RunningStack, postgres: PostgreSQL
) -> None:
    batch = served.wait(submit(served), until=half_way)
    assert live_answers(served, 1) == {200: 1}
    with away(postgres.kill, postgres.start):
        assert live_answers(served, 10) == {200: 10}
        answer = httpx.get(f"{served.url}/v1/batches", headers={"Authorization": f"Bearer {served.key}"}, timeout=60)
        assert (answer.status_code, "database" in answer.json()["error"]["message"]) == (503, True)
        assert_named(served, "database")
    assert_complete(served, wait_patiently(served, batch))


@pytest.mark.exhaustive
def test_a_batch_survives_five_seconds_without_s3(served: RunningStack, own_s3: S3Server) -> None:
    batch = served.wait(submit(served), until=half_way)
    with away(own_s3.stop, own_s3.start):
        upload = httpx.post(
            f"{served.url}/v1/files",
            headers={"Authorization": f"Bearer {served.key}"},
            files={"file": ("in.jsonl", b"{}"), "purpose": (None, "batch")},
            timeout=60,
        )
        assert (upload.status_code, "artifact store" in upload.json()["error"]["message"]) == (503, True)
        assert_named(served, "artifacts")
    assert_complete(served, wait_patiently(served, batch))


@pytest.mark.exhaustive
def test_merging_and_a_step_wait_for_s3(served: RunningStack, own_s3: S3Server) -> None:
    batch = submit(served, extra_body={"post_process": [{"step": "parquet"}]})
    batch = served.wait(batch, until=lambda batch: batch.request_counts.completed > ROWS - 300)
    with away(own_s3.stop, own_s3.start):
        pass
    batch = wait_patiently(served, batch)
    assert_complete(served, batch)
    (step,) = batch.batchyard["post_process"]
    assert step["status"] == "completed", step
    assert served.artifact(batch, "results.parquet").startswith(b"PAR1")
