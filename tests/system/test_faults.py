"""Batches survive processes that are killed with -9: no line is lost, and no answered line is run again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import pytest
import redis
from celery import Celery
from sqlalchemy import select, update

from batchyard import tariffs
from store import segments
from store.database import Database
from store.records import Batch, Segment
from tests.support.faulty import SEGMENT, restart
from tests.support.misbehaving import MisbehavingServer
from tests.support.rows import until
from tests.support.stacks import PATIENCE, RunningStack, a_chat
from tests.support.terminal import batchyard
from tests.support.traces import Collector, SeenSpan

ROWS = 400
"""They keep the engine busy for 6 s."""
CLIENT = "b7ad6b7169203331"
"""The span of a client that sends a trace."""


def requests(number: int, model: str = "logged") -> list[dict[str, Any]]:
    return [a_chat(f"id-{n}", f"{model} {n} of {time.time_ns()}", model=model) for n in range(number)]


def half_way(batch: Any) -> bool:
    return bool(batch.request_counts.completed >= batch.request_counts.total / 3 > 0)


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it went with its parent
        process.send_signal(signal.SIGKILL)


def assert_every_line_once(stack: RunningStack, batch: Any, number: int) -> None:
    assert batch.status == "completed", batch.to_json()
    lines = stack.lines(batch.output_file_id) + stack.lines(batch.error_file_id)
    assert Counter(line["custom_id"] for line in lines) == {f"id-{n}": 1 for n in range(number)}


def environment(stack: RunningStack) -> dict[str, str]:
    return stack.processes("web")[0].environ()


def change(stack: RunningStack, batch: Any, **times: int) -> None:
    """Change times of a batch where they are stored: nobody waits for the end of its window."""
    database = Database(stack.database_url)
    with database.write() as session:
        session.execute(update(Batch).where(Batch.id == batch.id).values(**times))
    database.close()


class KilledAmid(NamedTuple):
    """A batch whose worker was killed while it ran, at so many answers, and the stack as its project sees it."""

    stack: RunningStack
    lines: list[dict[str, Any]]
    trace: str
    answered_before: int
    batch: Any


@pytest.fixture(scope="module")
def killed_amid(faulty: RunningStack) -> KilledAmid:
    stack = faulty.in_project("killed")
    lines: list[dict[str, Any]] = []
    trace = ""

    def create() -> Any:
        nonlocal lines, trace
        lines, trace = requests(ROWS), f"{time.time_ns():032x}"
        header = {"traceparent": f"00-{trace}-{CLIENT}-01"}
        steps = {"post_process": [{"step": "parquet"}]}
        return stack.submit(lines, extra_body=steps, extra_headers=header)

    beside = stack.submit(requests(SEGMENT))
    batch, workers = stack.stopped_amid(create, half_way, lambda: faulty.processes("worker"))
    answered_before = batch.request_counts.completed
    for process in workers:
        kill(process)
    batch, _ = stack.wait(batch), stack.wait(beside)
    return KilledAmid(stack, lines, trace, answered_before, batch)


def test_a_killed_worker_loses_no_answer_and_answered_rows_are_not_run_again(
    killed_amid: KilledAmid, faulty_calls: Path
) -> None:
    stack, lines, _, answered_before, batch = killed_amid
    assert_every_line_once(stack, batch, ROWS)
    contents = {line["body"]["messages"][0]["content"] for line in lines}
    counts = Counter(call for call in faulty_calls.read_text().splitlines() if call in contents)
    assert set(counts) == contents
    twice = sum(count > 1 for count in counts.values())
    # Who pays for these tokens pays for each request once, whatever was computed twice: the first time gave no answer.
    tokens = sum(len(content.split()) for content in contents)
    cost = {"amount": tariffs.decimal(Fraction(3 * tokens, 10**6)), "currency": "EUR", "unpriced_requests": 0}
    assert batch.batchyard["cost"] == cost
    computed = sum(count * len(content.split()) for content, count in counts.items())
    assert (
        computed - twice * len(lines[0]["body"]["messages"][0]["content"].split()) == tokens == batch.usage.input_tokens
    )
    costs = [other.batchyard["cost"] for other in stack.client.batches.list(limit=100)]
    total = sum(Fraction(cost["amount"]) for cost in costs if cost)
    usage = cast(dict[str, Any], stack.client.get("/usage", cast_to=object))
    assert usage["total"]["costs"] == [{"amount": tariffs.decimal(total), "currency": "EUR"}], "the sum over batches"
    # Two segments were in flight. Requests whose answers they had not yet appended are run again, no others.
    assert twice <= 2 * SEGMENT
    assert answered_before > SEGMENT
    assert max(counts.values()) <= 2


def below(spans: list[SeenSpan], root: SeenSpan) -> list[str]:
    return sorted(span.name for span in spans if span.parent == root.id)


def epoch(span: SeenSpan) -> int:
    return int(span.attributes.get("batchyard.segment.epoch", 0))


def the_trace(collector: Collector, trace: str, name: str, expected: set[str]) -> tuple[list[SeenSpan], SeenSpan]:
    """Wait for the span `name` of a trace and those `expected` below it. Return all of the trace, and that one."""
    deadline = time.monotonic() + PATIENCE * 90
    while True:
        spans = collector.of(trace)
        for root in spans:
            if root.name == name and expected <= set(below(spans, root)):
                return spans, root
        assert time.monotonic() < deadline, [span.name for span in spans]
        time.sleep(0.05)


@pytest.mark.local
def test_one_trace_holds_a_batch_together_over_its_processes_and_a_kill(
    killed_amid: KilledAmid, collector: Collector
) -> None:
    batch, trace = killed_amid.batch, killed_amid.trace
    until(lambda: any(epoch(span) > 1 for span in collector.of(trace)), 90)  # who went on is another span
    spans, root = the_trace(collector, trace, "batch", {"validate", "plan", "segment", "merge", "step parquet"})
    assert (root.parent, root.error, root.service) == (CLIENT, False, "batchyard")
    expected = {"batchyard.batch.id": batch.id, "batchyard.status": "completed", "batchyard.completed": ROWS}
    assert expected.items() <= root.attributes.items()
    others = [name for name in below(spans, root) if name != "segment"]
    assert others == ["merge", "plan", "step parquet", "validate"]
    numbers = {span.attributes["batchyard.segment.number"] for span in spans if span.name == "segment"}
    assert numbers <= set(range(-(-ROWS // SEGMENT))), "the killed worker's last second may be missing"
    assert all(root.start <= span.start <= span.end for span in spans)


@pytest.mark.local
def test_the_batches_of_a_job_are_in_its_trace(faulty: RunningStack, collector: Collector) -> None:
    trace = f"{time.time_ns():032x}"
    body = {"recipe": "generate", "input": {"prompts": ["one", "two"]}, "options": {"model": "logged", "count": 2}}
    headers = {"traceparent": f"00-{trace}-{CLIENT}-01"}
    job = cast(
        dict[str, Any],
        faulty.client.post("/jobs", body=body, cast_to=object, options={"headers": headers}),
    )
    assert faulty.wait_for_job(job)["status"] == "completed"
    spans, root = the_trace(collector, trace, "job", {"validate", "batch", "merge"})
    assert below(spans, root) == ["batch", "merge", "validate"]
    spans, batch = the_trace(collector, trace, "batch", {"segment", "merge"})  # another process sends the segment's
    assert below(spans, batch) == ["merge", "segment"]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGQUIT, marks=[pytest.mark.exhaustive, pytest.mark.local])]
)
def test_a_worker_that_is_stopped_gives_its_segments_back_at_once_and_the_next_goes_on(
    faulty: RunningStack, number: signal.Signals
) -> None:
    batch = faulty.wait(faulty.submit(requests(ROWS)), until=half_way)
    worker = faulty.processes("worker")[0]
    worker.send_signal(number)
    psutil.wait_procs([worker], 9 * PATIENCE)
    assert not worker.is_running(), "a stack that ends kills it after 9 s"
    database = Database(environment(faulty)["DATABASE_URL"])
    with database.read() as session:
        rows = session.scalars(select(Segment).where(Segment.batch_id == batch.id)).all()
    database.close()
    running = [row.holder or "" for row in rows if row.state == "running"]  # by the next worker, if it was quick
    assert [holder for holder in running if holder.split("/")[1] == f"{worker.pid}"] == []
    assert {row.attempts for row in rows} == {0}
    assert_every_line_once(faulty, faulty.wait(batch), ROWS)


# test_batch_lifecycle.py kills web, beat and housekeeper. On PostgreSQL and S3 what Redis and Ray hold is the same.
@pytest.mark.local
@pytest.mark.parametrize(
    "names",
    [
        ("redis",),
        pytest.param(("ray",), marks=pytest.mark.exhaustive),
        pytest.param(("web", "beat", "housekeeper"), marks=pytest.mark.exhaustive),
    ],
    ids=" ".join,
)
def test_a_batch_survives_the_death_of(faulty: RunningStack, names: tuple[str, ...]) -> None:
    batch = faulty.wait(faulty.submit(requests(ROWS)), until=half_way)
    before = [process for name in names for process in faulty.processes(name)]
    for process in before:
        kill(process)
    psutil.wait_procs(before, 60)
    deadline = time.monotonic() + 450
    while time.monotonic() < deadline:
        try:
            batch = faulty.client.batches.retrieve(batch.id)
        except OSError:
            pass
        except Exception as error:
            if type(error).__name__ not in ("APIConnectionError", "InternalServerError", "APITimeoutError"):
                raise
        if batch.status == "completed":
            break
        time.sleep(0.05)
    assert_every_line_once(faulty, batch, ROWS)


def test_a_batch_survives_the_loss_of_everything_in_redis(faulty: RunningStack) -> None:
    batch = faulty.wait(faulty.submit(requests(ROWS)), until=half_way)
    redis.Redis.from_url(environment(faulty)["REDIS_URL"]).flushall()
    assert_every_line_once(faulty, faulty.wait(batch), ROWS)


def test_the_limit_holds_over_three_workers_and_frees_itself_after_a_kill(faulty: RunningStack) -> None:
    database = Database(environment(faulty)["DATABASE_URL"])
    broker = environment(faulty)["REDIS_URL"].replace("unix://", "redis+socket://")
    app = Celery(broker=broker, set_as_current=False)
    command = [sys.executable, "-m", "celery", "-A", "tasks.app", "worker", "-c", "2", "-Q", "batch_job_queue"]
    more = [
        subprocess.Popen(
            [*command, "-n", f"extra-{number}@%h"],
            env=environment(faulty),
            cwd=faulty.data,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for number in range(2)
    ]
    try:
        until(lambda: len(app.control.ping(timeout=10, limit=3) or []) == 3, 60)
        unanswered: list[float] = []

        def looked(batch: Any, enough: Callable[[Any], bool] = lambda _: False) -> bool:
            with database.read() as session:
                unanswered.append(sum(entry.unanswered for entry in segments.active(session)))
            return enough(batch)

        one = psutil.Process(more[0].pid)
        batch, workers = faulty.stopped_amid(
            lambda: faulty.submit(requests(600)),
            lambda batch: looked(batch, half_way),
            lambda: [*faulty.processes("worker"), one, *one.children(recursive=True)],
        )
        looked(batch)
        for process in workers:
            kill(process)
        batch = faulty.wait(batch, until=looked)
        # The engine answers 107 requests a second; those of three seconds, and one segment more, may be in segments.
        assert SEGMENT < max(unanswered) < 4 * SEGMENT
        assert_every_line_once(faulty, batch, 600)
    finally:
        database.close()
        for process in more:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.local
def test_a_request_that_kills_its_engine_is_answered_with_an_error_and_all_others_for_real(
    faulty: RunningStack,
) -> None:
    lines = requests(40, model="poisoned")
    lines[17]["body"]["messages"][0]["content"] = "arsenic"
    batch = faulty.wait(faulty.submit(lines), seconds=200)
    assert_every_line_once(faulty, batch, 40)
    (failed,) = faulty.lines(batch.error_file_id)
    assert (failed["custom_id"], failed["response"], failed["error"]["code"]) == ("id-17", None, "engine_died")
    assert batch.request_counts.to_dict() == {"total": 40, "completed": 39, "failed": 1}


@pytest.mark.local
def test_an_engine_that_cannot_start_holds_its_batches_and_only_in_the_end_gives_error_lines_with_its_reason(
    faulty: RunningStack, tmp_path: Path
) -> None:
    short, long = (faulty.submit(requests(5, model="broken")) for _ in range(2))
    faulty.wait(short, until=lambda batch: batch.status == "in_progress")
    long = faulty.wait(long, until=lambda batch: batch.batchyard["held"] is not None)
    assert (long.status, long.request_counts.failed) == ("in_progress", 0)
    assert long.batchyard["held"]["model"] == "broken"
    assert "no weights in this folder" in long.batchyard["held"]["reason"]
    models = ("models", "--data", faulty.data)
    until(lambda: re.search(r"broken +- +echo +on hold ", batchyard(*models, folder=tmp_path).stdout) is not None)
    other = faulty.wait(faulty.submit(requests(100, model="logged")))
    assert_every_line_once(faulty, other, 100)
    assert faulty.client.batches.retrieve(long.id).status == "in_progress", "another model runs meanwhile"

    def is_kept_in_the_last_minute_of_a_long_window(batch: Any) -> bool:
        change(faulty, batch, created_at=1, expires_at=int(time.time()) + 50)
        return False

    short = faulty.wait(short, until=is_kept_in_the_last_minute_of_a_long_window)
    assert_every_line_once(faulty, short, 5)
    assert (short.output_file_id, short.request_counts.failed) == (None, 5)
    for line in faulty.lines(short.error_file_id):
        assert line["response"] is None
        assert line["error"]["code"] == "engine_unavailable"
        assert "no weights in this folder" in line["error"]["message"]
    assert faulty.wait(faulty.client.batches.cancel(long.id)).status == "cancelled"


class Gate(threading.Event):
    """Holds up who waits for it, but the first ones."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = threading.Semaphore(first)

    def wait(self, timeout: float | None = None) -> bool:
        return self._first.acquire(blocking=False) or super().wait(timeout)


@pytest.mark.local
def test_a_stack_that_is_killed_whole_goes_on_where_it_was_and_a_command_takes_its_rollout_up(
    faulty: RunningStack, misbehaving: MisbehavingServer, tmp_path: Path
) -> None:
    prompts = [{"prompt": f"rolled {number}", "answer": "rolled 7"} for number in range(50)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    command = ["rollout", "rows.jsonl", "model=fake", "n=8", "reward=exact", "ground_truth=answer"]
    command += ["--data", str(faulty.data), "--artifacts"]

    def rollouts_of_all() -> list[Any]:
        params = {"recipe": "rollout", "limit": 100}
        return faulty.client.get("/jobs", cast_to=object, options={"params": params})["data"]  # type: ignore[index,no-any-return]

    before = len(rollouts_of_all())
    misbehaving.stuck = gate = Gate(100)
    first = subprocess.Popen(
        [str(Path(sys.executable).parent / "batchyard"), *command, "first", "--seed", "5"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(rollouts_of_all()) > before)
        until(lambda: any(stage["answered"] for stage in rollouts_of_all()[0]["batchyard"]["stages"]))
        batch = faulty.wait(faulty.submit(requests(400)), until=half_way)
        late = faulty.submit(requests(ROWS, model="fake"))
        faulty.wait(late, until=lambda batch: batch.status == "in_progress")
        job = rollouts_of_all()[0]
        assert (job["status"], first.poll()) == ("in_progress", None)
        first.kill()
        first.wait()
        faulty.kill()
    finally:
        gate.set()
    change(faulty, late, expires_at=int(time.time()) - 1)  # its window passes while nothing runs
    restart(faulty, faulty.data)
    assert_every_line_once(faulty, faulty.wait(batch), 400)
    late = faulty.wait(late)
    lines = faulty.lines(late.output_file_id) + faulty.lines(late.error_file_id)
    assert (late.status, len(lines)) == ("expired", ROWS)
    rollouts = []
    for seed, options in ((5, []), (5, ["--again"]), (6, [])):
        folder = f"{len(rollouts)}"
        printed = batchyard(*command, folder, "--seed", str(seed), *options, folder=tmp_path)
        assert printed.returncode == 0, printed.stderr
        assert (f"taking up job {job['id']}" in printed.stderr) == (not rollouts)
        rollouts.append((tmp_path / folder / "rollouts.parquet").read_bytes())
    assert rollouts[0] == rollouts[1] != rollouts[2]
