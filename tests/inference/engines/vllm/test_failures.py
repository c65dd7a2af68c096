"""Whoever waits for an answer reads why vLLM died: how its innermost process ended, or the last that it has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.engines.vllm import failures
from inference.engines.vllm.failures import Processes

CORE = "(EngineCore pid=7) ERROR 11-25 04:55:39 [core.py:1505] "
WORKER = "(Worker_TP1 pid=9) ERROR 11-25 04:55:38 [multiproc_executor.py:900] "
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


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
