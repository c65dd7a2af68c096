"""Whoever waits for an answer reads why vLLM died: how its innermost process ended, or the last that it has written."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.exceptions import RayTaskError

from batchyard.models import ModelSpec, vllm_installed
from inference.engines.start_errors import start_error
from inference.engines.vllm import failures
from inference.engines.vllm.failures import Processes
from inference.residents import directory
from inference.residents.session import EngineSession
from tests.support.rows import chat, until

CHAT = "/v1/chat/completions"
ARGUMENTS = {"dtype": "float32", "max_model_len": 256, "kv_cache_memory_bytes": 64 * 2**20}
HERE = "tests.inference.engines.vllm.planted"
CORE = "(EngineCore pid=7) ERROR 11-25 04:55:39 [core.py:1505] "
WORKER = "(Worker_TP1 pid=9) ERROR 11-25 04:55:38 [multiproc_executor.py:900] "
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
MEMORY = r"\d s before, its processes had \d\.\d GiB, and \d+\.\d of \d+\.\d GiB were free"
NO_KILL = "; the kernel ended no process for want of memory"


def real(test: Callable[..., None]) -> Callable[..., None]:
    """A test that starts vLLM."""
    test = pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed")(test)
    return pytest.mark.usefixtures("cluster")(pytest.mark.vllm(test))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that this process seems to write its output to."""
    log = tmp_path / "worker.out"
    log.write_text("ValueError: of an earlier engine\n")
    monkeypatch.setattr(failures, "_own_logs", lambda: [(log, log.stat().st_size)])
    monkeypatch.setattr(failures, "END_SECONDS", 0.0)
    return log


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            [
                CORE + "EngineCore encountered a fatal error.",
                CORE + "Traceback (most recent call last):",
                CORE + "RuntimeError: CPU Generator does not use offset",
                "(MainProcess pid=1) ERROR 11-25 04:55:39 [async_llm.py:906] "
                f"vllm.v1.engine.exceptions.EngineDeadError: {DEAD}",
            ],
            "RuntimeError: CPU Generator does not use offset",
        ),
        (
            [
                WORKER + "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
                WORKER + "CUDA kernel errors might be asynchronously reported at some other API call.",
                CORE + "RuntimeError: Worker failed with error 'CUDA error', please check the stack trace above for it",
                CORE + "KeyError: 'req-1'",
            ],
            "AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        ),
        (
            [
                CORE + "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
                CORE + "RuntimeError: cancelled",
            ],
            "vLLM's process VllmWorker-1 was ended by SIGKILL",
        ),
        (
            ["(EngineCore pid=7) INFO 11-25 04:55 [x.py:1] ImportError: no fast path"],
            "vLLM's engine failed, and wrote no reason",
        ),
        ([CORE + "AssertionError"], "AssertionError"),
        (
            ["Process EngineCore:", "torch.OutOfMemoryError: CUDA out of memory."],
            "OutOfMemoryError: CUDA out of memory.",
        ),
    ],
)
def test_the_cause_is_the_last_exception_of_the_innermost_process(lines: list[str], cause: str, log: Path) -> None:
    processes = Processes()
    with log.open("a") as file:
        file.write("\n".join([*lines, ""]))
    assert processes.death(DEAD) == cause


def test_a_signal_goes_before_what_was_written_and_an_abort_has_its_last_words(log: Path) -> None:
    processes = Processes()
    with log.open("a") as file:
        file.write(f"{CORE}ValueError: of a request\nterminate called\n  what():  NCCL error: remote process exited\n")
    started = "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': %s}"
    assert processes.death(started % -4) == "vLLM's engine process was ended by SIGILL"
    aborted = "vLLM's engine process was ended by SIGABRT: what(): NCCL error: remote process exited"
    assert processes.death(started % -6) == aborted
    log.write_text("")
    assert processes.death(started % 3) == "vLLM's engine process ended with exit code 3, and wrote no reason"


def test_an_error_of_the_client_itself_is_the_cause(log: Path) -> None:
    assert Processes().cause(ValueError("no such\n  model")) == "ValueError: no such model"


@pytest.fixture
def engine(request: pytest.FixtureRequest, tiny: Path, cluster: str) -> Iterator[Any]:
    """A started engine of real vLLM, by the name of what it was planted with."""
    planted = getattr(request, "param", None)
    arguments = {**ARGUMENTS, **({"worker_extension_cls": f"{HERE}.{planted}"} if planted else {})}
    spec = ModelSpec(name="dying", engine="vllm", source=str(tiny), engine_args=arguments)
    handle = directory.get_or_create_engine(spec, 60.0, 0)
    try:
        ray.get(handle.ready.remote(600))
        yield handle
    finally:
        directory.stop_all("dying")


def exchange(engine: Any, text: str) -> Any:
    session = EngineSession("run", "work", 1, 8)
    body = json.dumps(chat(text, max_tokens=4)[0] | {"model": "dying"})
    return engine.exchange.remote(session, "caller", CHAT, [(0, 0, 1, body)])


def death(reply: Any) -> str:
    [(_, (status, _, error, *_))] = ray.get(reply)
    assert status is None and error["code"] == "engine_died"
    print("REASON", error["message"])
    return str(error["message"])


@real
def test_a_signal_is_named_with_the_memory_and_the_remedy(engine: Any) -> None:
    pid = ray.get(engine.state.remote())["process"]["pid"]
    [core] = [child for child in psutil.Process(pid).children(recursive=True) if "EngineCore" in child.name()]
    core.suspend()
    reply = exchange(engine, "hi")
    until(lambda: ray.get(engine.state.remote())["in_flight"] == 1)
    core.send_signal(signal.SIGKILL)
    with suppress(psutil.NoSuchProcess):
        core.resume()
    reason = death(reply)
    assert re.match(rf"vLLM's engine process was ended by SIGKILL \({MEMORY}{NO_KILL}\)\. Remedy: ", reason), reason
    assert "find what on this machine ends processes" in reason


@pytest.mark.exhaustive
@real
@pytest.mark.parametrize("engine", ["Faults"], indirect=True)
def test_a_fault_in_the_engines_process_is_named(engine: Any) -> None:
    reason = death(exchange(engine, "x" * 120))
    assert re.match(rf"vLLM's engine process was ended by SIGSEGV \({MEMORY}{NO_KILL}\)\. Remedy: ", reason), reason
    assert "see the engine's lines in `batchyard logs`" in reason


@real
@pytest.mark.parametrize("engine", ["Raises"], indirect=True)
def test_an_exception_in_the_engines_process_is_told_as_it_was_raised(engine: Any) -> None:
    reason = death(exchange(engine, "x" * 120))
    assert re.fullmatch(rf"RuntimeError: CPU Generator does not use offset \({MEMORY}{NO_KILL}\)", reason), reason


@real
@pytest.mark.parametrize(
    ("planted", "reason"),
    [
        pytest.param(
            "Killed",
            r"vLLM's engine process was ended by SIGKILL \(.*GiB were free.*\)\. Remedy: find what",
            marks=pytest.mark.exhaustive,
        ),
        ("Greedy", r"RuntimeError: .*can't allocate memory.* \(.*GiB were free.*\)\. Remedy: lower engine_args\."),
    ],
)
def test_an_engine_that_dies_as_it_starts_says_how(planted: str, reason: str, tiny: Path) -> None:
    arguments = {**ARGUMENTS, "worker_extension_cls": f"{HERE}.{planted}"}
    spec = ModelSpec(name="dying", engine="vllm", source=str(tiny), engine_args=arguments)
    try:
        with pytest.raises(RayTaskError) as caught:
            ray.get(directory.get_or_create_engine(spec, 60.0, 0).ready.remote(600))
    finally:
        directory.stop_all("dying")
    message = start_error(spec, caught.value).message
    print("REASON", message)
    assert re.match(f"engine vllm of model dying does not start: {reason}", message), message
