"""Live requests while processes are killed with -9: others' streams go on, and whatever fails says so. None hangs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
import pytest
import redis

from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat

TOKENS = 50
STREAM_SECONDS = 1.0
LONG_TOKENS = 200
"""4 s: nearly all of them after the kill."""
ENDLESS_TOKENS = 5000
"""100 s: however late the kill comes, it cuts the stream."""
ANSWER_SECONDS = 360.0


@dataclass
class Stream:
    """A stream that a thread reads: its words so far, and how it ended.

    Attributes:
        end: `whole`, the code of an error, or the name of an exception; None while it goes on.
    """

    words: int = 0
    end: str | None = None
    thread: threading.Thread | None = None
    began: float = field(default_factory=time.monotonic)

    def wait(self) -> str:
        """Return how it ended, within ANSWER_SECONDS."""
        assert self.thread is not None
        self.thread.join(ANSWER_SECONDS)
        assert self.end is not None, f"it hangs after {self.words} words"
        return self.end


def stream(stack: RunningStack, tokens: int = LONG_TOKENS, model: str = "paced", text: str = "go") -> Stream:
    """Begin a stream, and return once its first word is there or it has ended."""
    opened = Stream()
    opened.thread = threading.Thread(target=read, args=[stack, opened, tokens, model, text], daemon=True)
    opened.thread.start()
    deadline = time.monotonic() + ANSWER_SECONDS
    while not opened.words and opened.end is None:
        assert time.monotonic() < deadline, "no first word"
        time.sleep(0.01)
    return opened


def read(stack: RunningStack, opened: Stream, tokens: int, model: str, text: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": True}
    headers = {"Authorization": f"Bearer {stack.key}"}
    url = f"{stack.url}/v1/chat/completions"
    try:
        with httpx.stream("POST", url, json=body, headers=headers, timeout=ANSWER_SECONDS) as response:
            if response.status_code != 200:
                opened.end = json.loads(response.read())["error"]["code"]
                return
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    opened.end = "whole"
                elif line.startswith("data: "):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        opened.end = chunk["error"]["code"]
                    elif chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                        opened.words += 1
    except httpx.HTTPError as error:
        opened.end = type(error).__name__
    opened.end = opened.end or "cut"


@contextmanager
def traffic(stack: RunningStack, streams: int = 4) -> Iterator[Counter[str]]:
    """Stream all the time, one after the other in each of some threads. Yield how they ended, counted."""
    ends: Counter[str] = Counter()
    over = threading.Event()

    def go() -> None:
        while not over.is_set():
            one = Stream()
            read(stack, one, TOKENS, "paced", "go")
            ends[one.end or "none"] += 1
            if one.end != "whole":
                time.sleep(0.2)

    threads = [threading.Thread(target=go, daemon=True) for _ in range(streams)]
    for thread in threads:
        thread.start()
    try:
        yield ends
    finally:
        over.set()
        for thread in threads:
            thread.join(ANSWER_SECONDS)
            assert not thread.is_alive(), f"a live request hangs: {ends}"


def answered(stack: RunningStack, model: str = "paced") -> None:
    """Wait until a short stream is whole again."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while (end := stream(stack, 2, model).wait()) != "whole":
        assert time.monotonic() < deadline, end
        time.sleep(0.05)


def kill(*processes: psutil.Process) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def restarted(stack: RunningStack, name: str, before: int) -> None:
    """Wait until another process of this name runs."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        process = stack.processes(name)[0]
        if process.pid != before and process.is_running():
            return
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_streams_go_on_while_processes_that_have_no_part_in_them_are_killed(faulty: RunningStack) -> None:
    answered(faulty)
    with traffic(faulty) as ends:
        long = stream(faulty)
        killed = {name: faulty.processes(name) for name in ("web", "beat", "worker", "housekeeper")}
        for processes in killed.values():
            kill(*processes)
        assert long.wait() == "whole"
        for name, processes in killed.items():
            restarted(faulty, name, processes[0].pid)
    assert set(ends) == {"whole"}, ends
    answered(faulty)


def test_streams_go_on_when_redis_has_lost_everything_and_while_it_is_killed(faulty: RunningStack) -> None:
    answered(faulty)
    with traffic(faulty) as ends:
        long = stream(faulty)
        url = faulty.processes("web")[0].environ()["REDIS_URL"]
        redis.Redis(unix_socket_path=url.removeprefix("unix://")).flushall()
        words = long.words
        until(lambda: long.words > words + 50 or long.end is not None)  # for a second
        processes = faulty.processes("redis")
        kill(*processes)
        assert long.wait() == "whole"
        restarted(faulty, "redis", processes[0].pid)
    assert set(ends) == {"whole"}, ends
    answered(faulty)


def test_a_killed_gateway_takes_its_streams_along_and_the_next_one_answers(faulty: RunningStack) -> None:
    answered(faulty)
    long = stream(faulty, ENDLESS_TOKENS)
    kill(*faulty.processes("gateway"))
    assert long.wait() in ("RemoteProtocolError", "ReadError")
    answered(faulty)


def test_an_engine_that_dies_is_said_in_its_streams_and_the_next_one_answers(faulty: RunningStack) -> None:
    answered(faulty, "brittle")
    beside = stream(faulty, ENDLESS_TOKENS, model="brittle")
    before = deaths(faulty, "brittle")
    assert stream(faulty, model="brittle", text="arsenic").wait() == "engine_died"
    assert beside.wait() == "engine_died"
    answered(faulty, "brittle")
    until(lambda: deaths(faulty, "brittle") == before + 1)  # a worker counts them, after the next engine may answer


def deaths(stack: RunningStack, model: str) -> float:
    """Return how many engines of the model have died, as /metrics counts them."""
    headers = {"Authorization": f"Bearer {stack.key}"}
    text = httpx.get(f"{stack.url}/metrics", headers=headers, timeout=ANSWER_SECONDS).text
    lines = [line for line in text.splitlines() if line.startswith("batchyard_engine_deaths") and model in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


# tests/webapp/gateway/test_live.py and tests/inference/test_live.py test the two halves with shorter waits.
@pytest.mark.exhaustive
def test_an_engine_that_hangs_is_ended_and_the_next_one_answers(faulty: RunningStack) -> None:
    answered(faulty)
    long = stream(faulty, ENDLESS_TOKENS)
    until(lambda: bool(engine_processes(faulty)))  # an engine is published some seconds after its start
    (engine,) = engine_processes(faulty)
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        assert long.wait() == "engine_died"
    finally:
        kill(engine)
    answered(faulty)


def engine_processes(stack: RunningStack) -> list[psutil.Process]:
    """Return the processes of the engines that answer the gateway now: they have the other ends of its connections."""
    pids = {engine["process"].get("pid") for engine in stack.engines("paced")}
    (gateway,) = stack.processes("gateway")
    peers = {one.raddr.port for one in gateway.net_connections("tcp") if one.raddr}
    found = []
    for process in stack.processes("ray"):
        with suppress(psutil.Error):
            listening = {one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
            if process.pid in pids and listening & peers:
                found.append(process)
    return found


@pytest.mark.exhaustive
def test_a_killed_cluster_ends_streams_with_an_error_and_a_batch_beside_them_is_whole(faulty: RunningStack) -> None:
    answered(faulty)
    lines = [a_chat(f"id-{n}", f"line {n}", model="paced", max_tokens=20) for n in range(300)]
    batch = faulty.wait(faulty.submit(lines), until=lambda batch: batch.request_counts.completed > 0)
    with traffic(faulty) as ends:
        long = stream(faulty, ENDLESS_TOKENS)
        kill(*faulty.processes("ray"))
        assert long.wait() == "engine_died"
        answered(faulty)
    assert ends["whole"] and set(ends) <= {"whole", "engine_died", "engine_starting", "engine_failed"}, ends
    batch = faulty.wait(batch, seconds=240)
    ids = Counter(line["custom_id"] for line in faulty.lines(batch.output_file_id) + faulty.lines(batch.error_file_id))
    assert batch.status == "completed" and ids == {f"id-{n}": 1 for n in range(300)}


def test_live_requests_take_places_from_a_batch_and_no_line_is_lost_or_doubled(faulty: RunningStack) -> None:
    answered(faulty)
    lines = [a_chat(f"id-{n}", f"line {n}", model="paced", max_tokens=60 + n * 37 % 80) for n in range(80)]
    batches: list[Any] = []

    def ended() -> bool:
        return bool(faulty.client.batches.retrieve(batches[-1].id).status == "completed")

    def is_redone() -> bool:
        return engine_status(faulty, "redone_requests") > 0

    # tests/inference/residents/test_live_admission.py says in simulated time how soon a live request has a place.
    while not batches or not is_redone():
        assert len(batches) < 4
        batches.append(faulty.submit(lines))
        until(lambda: engine_status(faulty, "in_flight") > 8 or ended())
        with traffic(faulty, streams=12) as ends:  # of 16 places
            assert stream(faulty, 5).wait() == "whole"
        assert set(ends) == {"whole"}
        with suppress(AssertionError):
            until(is_redone, 5)  # it is published every 5 s
    for batch in map(faulty.wait, batches):
        ids = Counter(line["custom_id"] for line in faulty.lines(batch.output_file_id))
        assert batch.request_counts.completed == 80 and ids == {f"id-{n}": 1 for n in range(80)}


def engine_status(stack: RunningStack, name: str) -> int:
    """Return a number of the status of engine `paced`, as /v1/queue says within seconds; 0 if none is up."""
    headers = {"Authorization": f"Bearer {stack.key}"}
    engines = httpx.get(f"{stack.url}/v1/queue", headers=headers, timeout=ANSWER_SECONDS).json()["engines"] or []
    return sum(engine[name] for engine in engines if engine["model"] == "paced")


@pytest.mark.exhaustive
def test_256_streams_at_once_are_answered(faulty: RunningStack) -> None:
    with httpx.Client(headers={"Authorization": f"Bearer {faulty.key}"}):
        opened = []
        for _ in range(256):
            one = Stream()
            one.thread = threading.Thread(target=read, args=[faulty, one, 5, "brittle", "go"], daemon=True)
            one.thread.start()
            opened.append(one)
        assert Counter(one.wait() for one in opened) == {"whole": 256}
