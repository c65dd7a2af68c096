"""Servers that a stack starts and owns: whatever is killed, each line is answered once, and nothing is left running."""

from __future__ import annotations

import shlex
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from inference.engines.openai import supervisor
from tests.conftest import StartStack
from tests.support.rows import until
from tests.support.stacks import PATIENCE, ROOT, RunningStack, a_chat
from tests.support.terminal import batchyard

SCRIPT = ROOT / "tests/support/owned_server.py"
ROWS = 200
FAULTS = {
    "late": ("--never-ready", "GET /health is answered with HTTP 503", "set `ready` to a path"),
    "exits": ("--exits 'RuntimeError: no weights'", "ended with exit code 3: RuntimeError: no weights", "by hand"),
    "wrong": ("", "it lists theirs, not wrong", "set engine_args.model"),
}


def entry(name: str, flags: str, more: str = "") -> str:
    command = f"python {shlex.quote(str(SCRIPT))} --port {{port}} {flags}"
    return f'[models.{name}]\nengine = "server"\ncommand = """{command}"""\n{more}\n'


@pytest.fixture(scope="module")
def started(start_stack: StartStack, tmp_path_factory: pytest.TempPathFactory) -> RunningStack:
    child = tmp_path_factory.mktemp("owned") / "child"
    models = [entry(name, flags) for name, (flags, *_) in FAULTS.items()]
    ours = entry("ours", f"--seconds 0.2 --child {child}", 'engine_args.model = "theirs"\nmax_in_flight = 16')
    return start_stack("\n".join([ours, *models]), BATCHYARD_ENGINE_START_TIMEOUT="30")


@pytest.fixture
def stack(started: RunningStack) -> RunningStack:
    """The stack, which runs again if a test has ended it."""
    if started.process.poll() is not None:
        started.become(RunningStack.restart(started.data, **started.environment))
    return started


def owned() -> dict[str, list[psutil.Process]]:
    """The processes that run for model `ours`: supervisors, servers, and the children of these."""
    found: dict[str, list[psutil.Process]] = {"supervisor": [], "server": [], "child": []}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if str(SCRIPT) in words and "--child" in words:
                kind = "supervisor" if supervisor.__name__ in words else "server"
                found[kind].append(process)
                found["child"] += process.children() if kind == "server" else []
        except psutil.Error:
            continue
    return found


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(stack: RunningStack, victim: str) -> None:
    if victim == "actor":
        parent = owned()["supervisor"][0].parent()
        assert parent is not None and "EngineActor" in parent.cmdline()[0]
        parent.kill()
    elif victim in ("raylet", "worker"):
        processes = stack.processes("ray" if victim == "raylet" else "worker")
        named = [process for process in processes if victim in process.name()] if victim == "raylet" else processes
        named[0].kill()
    elif victim == "illness":
        owned()["server"][0].send_signal(signal.SIGUSR1)
    else:
        owned()[victim][0].kill()


@pytest.mark.parametrize(
    "victim",
    [
        "server",
        # tests/inference/engines/openai/test_server.py kills supervisor and actor, and makes a server ill.
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("raylet", "supervisor", "actor", "illness", "worker")
        ),
    ],
)
def test_whatever_is_killed_amid_a_batch_each_line_is_answered_and_nothing_is_left(
    stack: RunningStack, victim: str
) -> None:
    rows = [a_chat(str(number), f"say {number}", model="ours") for number in range(ROWS)]
    batch = stack.caught(lambda: stack.submit(rows), lambda batch: batch.request_counts.completed > 20)
    before = [process for processes in owned().values() for process in processes]
    kill(stack, victim)
    batch = stack.wait(batch)
    assert (batch.status, batch.request_counts.completed) == ("completed", ROWS)
    lines = stack.lines(batch.output_file_id)
    assert Counter(line["custom_id"] for line in lines) == Counter(map(str, range(ROWS)))
    assert all(line["response"]["body"]["model"] == "ours" for line in lines)
    if victim != "worker":  # an engine outlives the worker that runs segments
        until(lambda: not any(map(runs, before)))
    stack.wait(stack.submit([a_chat("a", "hello", model="ours")]))  # a late kill hits a server that nobody asks again
    until(lambda: [len(processes) for processes in owned().values()] == [1, 1, 1])


def test_a_stream_ends_with_its_server_and_the_next_one_is_answered(stack: RunningStack) -> None:
    def ask(text: str) -> Any:
        return stack.client.with_options(max_retries=3).chat.completions.create(
            model="ours", messages=[{"role": "user", "content": text}], stream=True, timeout=300
        )

    words = iter(ask(" ".join(f"{number} " for number in range(100))))
    assert next(words).choices[0].delta.content == "0"
    owned()["server"][0].kill()
    with pytest.raises(openai.APIError, match="SIGKILL"):
        list(words)
    assert [chunk.choices[0].delta.content for chunk in ask("here again")][:2] == ["here", "again"]
    owned()["server"][0].kill()
    until(lambda: not owned()["server"])
    assert [chunk.choices[0].delta.content for chunk in ask("and again")][:2] == ["and", "again"], "an idle one died"


def test_the_lines_of_a_server_are_in_the_logs_of_its_batch(stack: RunningStack) -> None:
    for process in owned()["server"]:
        process.kill()
    until(lambda: not owned()["server"])
    batch = stack.wait(stack.submit([a_chat("a", "hello", model="ours")]))
    command = ("logs", batch.id, "--data", stack.data, "--json")
    until(lambda: "serves theirs" in batchyard(*command, folder=stack.data.parent).stdout)


@pytest.mark.exhaustive  # tests/inference/engines/openai/test_server.py has all but the way to the model's status
def test_a_server_that_cannot_be_used_says_why_and_what_to_do(stack: RunningStack) -> None:
    batches = [stack.submit([a_chat("a", "hello", model=name)]) for name in FAULTS]

    def is_said(name: str) -> bool:
        """The model is held for its reason: on a busy machine, one start or the other takes too long."""
        models: Any = stack.client.get("/models?engines=true", cast_to=object)
        (reason,) = (model["batchyard"]["held"] or "" for model in models["data"] if model["id"] == name)
        _, cause, remedy = FAULTS[name]
        return cause in reason and remedy in reason.partition("Remedy: ")[2]

    for name in FAULTS:
        until(lambda: is_said(name))  # noqa: B023
    for batch in batches:
        stack.client.batches.cancel(batch.id)


def test_a_stack_that_ends_ends_its_servers(stack: RunningStack) -> None:
    stack.wait(stack.submit([a_chat("a", "hello", model="ours")]))
    (child,) = owned()["child"]
    assert Path(owned()["server"][0].cmdline()[-1]).read_text() == f"{child.pid}"
    stack.process.send_signal(signal.SIGTERM)
    stack.process.wait(PATIENCE * 60)
    assert not any(owned().values()) and not runs(child)
