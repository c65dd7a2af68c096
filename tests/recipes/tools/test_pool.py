"""Calls of tools in processes: one that hangs, crashes, floods its output, forks or takes memory harms itself alone."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from batchyard.recipes import Call, Called
from recipes.tools.pool import ToolCalls
from tests.support.rows import until

pytestmark = pytest.mark.long

FILE = '''
import asyncio, os, time
from datetime import date
from pathlib import Path
from batchyard.recipes import tool

MARKS = Path(__file__).parent

@tool("add", "retriable")
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b

@tool("day", "retriable")
async def day(when: date) -> dict:
    await asyncio.sleep(0)
    return {"year": when.year, "when": when}

@tool("where", "once")
def where(idempotency_key: str) -> list:
    Path("mark").touch()
    return [idempotency_key, os.getcwd(), sorted(os.listdir())]

@tool("hang", "once", seconds=2)
def hang() -> None:
    print("I wait", flush=True)
    time.sleep(60)

@tool("crash", "once")
def crash() -> None:
    print("Good bye.", flush=True)
    os._exit(3)

@tool("raises", "once")
def raises() -> None:
    raise ValueError("no such thing")

@tool("large", "once", output_bytes=1000)
def large() -> str:
    return "x" * 100_000_000

@tool("flood", "once")
def flood() -> None:
    while True:
        os.write(1, b"x" * 65536)

@tool("hungry", "once", memory_mb=64)
def hungry() -> int:
    return len(bytearray(512 * 1024 * 1024))

@tool("bomb", "once", seconds=300)
def bomb() -> None:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        time.sleep(0.002)

@tool("leaves", "once")
def leaves(seconds: float) -> str:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            time.sleep(60)
        os.write(writer, str(pid).encode())  # by the parent: what has left a session may be killed at once
        os._exit(0)
    pid = os.read(reader, 20).decode()
    time.sleep(seconds)
    return pid

@tool("odd", "once")
def odd() -> object:
    return {1, 2} and object()

@tool("slow", "retriable")
def slow(seconds: float) -> str:
    (MARKS / "begun").open("a").write("r")
    time.sleep(seconds if (MARKS / "begun").read_text().count("r") == 1 else 0)
    return "done"

@tool("held", "retriable")
def held() -> str:
    (MARKS / "begun").open("a").write("h")
    while not (MARKS / "go").exists():
        time.sleep(0.01)
    return "done"

@tool("slowly-once", "once")
def slowly_once(seconds: float) -> str:
    (MARKS / "begun").open("a").write("o")
    time.sleep(seconds)
    return "done"
'''


class Calls:
    """Calls of the tools of a folder, and their outcomes by number."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.pool = ToolCalls(str(folder), **{"processes": 8, **options})
        self._number = 0

    def begin(self, *calls: Call, owner: str = "job") -> queue.Queue[tuple[int, Called]]:
        outcomes: queue.Queue[tuple[int, Called]] = queue.Queue()
        for index, call in enumerate(calls):
            self._number += 1

            def done(outcome: Called, index: int = index) -> None:
                outcomes.put((index, outcome))

            is_retriable = call.tool not in ("slowly-once", "crash")
            self.pool.submit(owner, f"key-{self._number}", call, is_retriable=is_retriable, done=done)
        return outcomes

    def outcomes(self, *calls: Call) -> list[Called]:
        outcomes = self.begin(*calls)
        return [outcome for _, outcome in sorted((outcomes.get(timeout=360) for _ in calls), key=lambda pair: pair[0])]

    def server(self) -> psutil.Process:
        (server,) = [process for process in psutil.Process().children() if self._is_server(process)]
        return server

    def _is_server(self, process: psutil.Process) -> bool:
        try:
            return {"recipes.tools.server", str(self.folder)} <= {*process.cmdline()}
        except psutil.NoSuchProcess:  # it has ended, reaped or not
            return False


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    folder = tmp_path_factory.mktemp("tools")
    (folder / "odd.py").write_text(FILE)
    made = Calls(folder)
    yield made
    made.pool.close()


def codes(outcomes: list[Called]) -> list[str | None]:
    return [None if outcome.ok else (outcome.error or {})["code"] for outcome in outcomes]


def test_a_tool_gets_its_arguments_as_it_declares_them_and_returns_json(calls: Calls) -> None:
    added, other, day = calls.outcomes(Call("add", a=1), Call("add", a=1, b=4), Call("day", when="2026-11-26"))
    assert (added.value, other.value) == (3, 5)
    assert day.value == {"year": 2026, "when": "2026-11-26"}
    assert day.text == '{"year": 2026, "when": "2026-11-26"}'


def test_a_call_has_its_key_and_a_folder_of_its_own(calls: Calls) -> None:
    first, second = (outcome.value for outcome in calls.outcomes(Call("where"), Call("where")))
    assert first[0] != second[0] and first[1] != second[1]
    assert first[2] == second[2] == ["mark"]
    assert not Path(first[1]).exists()


def test_what_hangs_crashes_floods_or_takes_too_much_harms_its_own_call_alone(calls: Calls) -> None:
    names = ["hang", "crash", "raises", "large", "flood", "hungry", "bomb", "odd", "nothing"]
    wrong = [Call(name) for name in names]
    outcomes = calls.outcomes(*wrong, *[Call("add", a=number) for number in range(20)])
    assert codes(outcomes[: len(names)]) == [
        *("tool_timeout", "tool_crashed", "tool_error", "output_too_large", "output_too_large", "tool_error"),
        *("too_many_processes", "tool_error", "tool_not_found"),
    ]
    assert [outcome.value for outcome in outcomes[len(names) :]] == [number + 2 for number in range(20)]
    messages = [(outcome.error or {})["message"] for outcome in outcomes[: len(names)]]
    # On a busy machine it may have had no turn, and printed nothing.
    assert messages[0].removesuffix(" It printed: I wait") == "It ran longer than 2 seconds."
    assert messages[1] == "Its process ended with exit code 3. It printed: Good bye."
    assert messages[2] == "ValueError: no such thing"
    assert messages[5] == "It took more than 64 MiB of memory."
    assert "not JSON serializable" in messages[7] or "serialize" in messages[7]
    until(lambda: not calls.server().children(recursive=True))


def test_a_process_that_has_left_the_session_of_its_call_is_killed_with_it(calls: Calls) -> None:
    short, long = calls.outcomes(Call("leaves", seconds=0), Call("leaves", seconds=0.5))
    assert short.ok and long.ok
    until(lambda: not any(psutil.pid_exists(int(outcome.value)) for outcome in (short, long)))


def test_a_call_under_way_is_not_made_again_and_one_that_is_forgotten_before_it_begins_is_not_made(
    tmp_path: Path,
) -> None:
    (tmp_path / "odd.py").write_text(FILE)
    calls = Calls(tmp_path, processes=1)
    try:
        outcomes: queue.Queue[Called] = queue.Queue()
        call = Call("held")
        for _ in range(2):
            calls.pool.submit("job", "same", call, is_retriable=True, done=outcomes.put)
        assert "same" in calls.pool
        calls.pool.submit("other", "unwanted", call, is_retriable=True, done=outcomes.put)
        calls.pool.forget_all("other")
        (tmp_path / "go").touch()
        assert outcomes.get(timeout=360).value == "done"
        calls.pool.submit("job", "same", call, is_retriable=True, done=outcomes.put)
        assert outcomes.get(timeout=360).value == "done"
        calls.pool.forget("same")
        assert "same" not in calls.pool
        assert calls.outcomes(Call("add", a=1))[0].value == 3
        assert (tmp_path / "begun").read_text() == "h"
    finally:
        calls.pool.close()


def test_when_the_process_of_the_tools_is_killed_calls_are_made_again_or_interrupted(calls: Calls) -> None:
    begun = calls.folder / "begun"
    outcomes = calls.begin(Call("slow", seconds=50), Call("slowly-once", seconds=50))
    until(lambda: begun.exists() and len(begun.read_text()) == 2)
    calls.server().send_signal(signal.SIGKILL)
    by_index = dict(outcomes.get(timeout=360) for _ in range(2))
    assert by_index[0].value == "done"
    assert codes([by_index[1]]) == ["interrupted"]
    assert sorted(begun.read_text()) == ["o", "r", "r"]


def test_a_sandbox_that_does_not_start_fails_the_call_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(FILE)
    calls = Calls(tmp_path, sandbox="/there/is/no/such-sandbox --flag")
    (outcome,) = calls.outcomes(Call("add", a=1))
    assert codes([outcome]) == ["tool_crashed"] and "/there/is/no/such-sandbox" in outcome.text


def test_a_sandbox_runs_the_process_of_the_tools(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(FILE)
    calls = Calls(tmp_path, sandbox="env BATCHYARD_IN_SANDBOX=1")
    try:
        assert calls.outcomes(Call("add", a=1))[0].value == 3
        process = calls.server()
        assert process.environ()["BATCHYARD_IN_SANDBOX"] == "1"
    finally:
        calls.pool.close()
    until(lambda: not process.is_running())
