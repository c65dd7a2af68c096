"""Real vLLM that dies: no row is lost, no process stays, and whoever waits reads why.

These tests end the engines that those of the files before have shared.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from batchyard.endpoints import catalog
from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec, vllm_installed
from inference import pipeline
from inference.residents import actor, directory
from inference.residents.session import EngineSession
from inference.residents.status import ResidentStatus
from tests.support.pipelines import TIMEOUTS
from tests.support.rows import chat, table, until
from tests.support.vllm_engines import PLANTED, encoder_spec, engine_core, engine_processes, tiny_spec

CHAT = catalog.CHAT.path
MEMORY = r"\d s before, its processes had \d\.\d GiB, and \d+\.\d of \d+\.\d GiB were free"
NO_KILL = "; the kernel ended no process for want of memory"
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed"),
    pytest.mark.usefixtures("cluster"),
]


@pytest.fixture
def spec(tiny: Path, cluster: str) -> ModelSpec:
    return tiny_spec(tiny)


def started(spec: ModelSpec) -> Any:
    """Return the handle of a model's engine, which runs."""
    pipeline.start(spec, TIMEOUTS)
    return actor.get_or_create_engine(spec, TIMEOUTS.request_timeout, 0)


def exchange(engine: Any, endpoint: str, body: dict[str, Any]) -> Any:
    session = EngineSession("run", "work", 1, 8)
    return engine.exchange.remote(session, "caller", endpoint, [(0, 0, 1, json.dumps(body))])


def death(model: str, reply: Any) -> str:
    """Return why the engine died, from the reply to what it died of. No process of it stays."""
    [(_, (status, _, error, *_))] = ray.get(reply)
    assert status is None and error["code"] == "engine_died"
    print("REASON", error["message"])
    directory.stop_all(model)
    until(lambda: not engine_processes(model))
    return str(error["message"])


def states(model: str) -> list[ResidentStatus]:
    return [state for state in directory.states(60.0).values() if state.model == model and state.state != "starting"]


def test_a_killed_owner_loses_no_row_and_leaves_no_process(spec: ModelSpec) -> None:
    started(spec)
    processes = engine_processes("tiny")
    assert processes, "vLLM has processes of its own"
    bodies = chat(*[f"say {index}" for index in range(400)], temperature=0, max_tokens=100, ignore_eos=True)
    [before] = states("tiny")

    def kill() -> None:
        until(lambda: any(state.answered > before.answered + 100 for state in states("tiny")))
        os.kill(before.process["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    tables = list(pipeline.run(spec, CHAT, table(bodies), TIMEOUTS))
    killer.join()
    assert all(ok for answers in tables for ok in answers.column("ok").to_pylist())
    assert sorted(line for answers in tables for line in answers.column("line").to_pylist()) == list(range(400))
    [after] = states("tiny")
    assert after.process != before.process, "it was killed before all rows had answers"
    until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes))


@pytest.mark.exhaustive
def test_an_engine_whose_process_was_killed_without_work_is_started_again(spec: ModelSpec) -> None:
    """In `make test` such a process is killed while it works, under a batch (tests/system/test_kills.py)."""
    started(spec)
    engine_core(engine_processes("tiny")).kill()
    bodies = chat(*[f"say {index}" for index in range(50)], temperature=0, max_tokens=100, ignore_eos=True)
    tables = list(pipeline.run(spec, CHAT, table(bodies), TIMEOUTS))
    assert all(ok for answers in tables for ok in answers.column("ok").to_pylist())


@pytest.mark.exhaustive
def test_a_fault_in_the_engines_process_is_named(spec: ModelSpec) -> None:
    """The signal is found as SIGKILL is, of which `make test` has a test."""
    (body,) = chat("hi", vllm_xargs={"end": "fault"})
    reason = death("tiny", exchange(started(spec), CHAT, body))
    assert re.match(rf"vLLM's engine process was ended by SIGSEGV \({MEMORY}{NO_KILL}\)\. Remedy: ", reason), reason
    assert "see the engine's lines in `batchyard logs`" in reason


def test_an_exception_in_the_engines_process_is_told_as_it_was_raised(spec: ModelSpec) -> None:
    (body,) = chat("hi", vllm_xargs={"end": "raise"})
    reason = death("tiny", exchange(started(spec), CHAT, body))
    assert re.fullmatch(rf"RuntimeError: CPU Generator does not use offset \({MEMORY}{NO_KILL}\)", reason), reason


@pytest.mark.exhaustive
def test_a_signal_is_named_with_the_memory_and_the_remedy() -> None:
    engine = started(encoder_spec("sentiment"))
    process = engine_core(engine_processes("sentiment"))
    process.suspend()
    reply = exchange(engine, catalog.CLASSIFY.path, {"model": "sentiment", "input": "The screen was excellent."})
    until(lambda: ray.get(engine.state.remote())["in_flight"] == 1)
    process.send_signal(signal.SIGKILL)
    with suppress(psutil.NoSuchProcess):
        process.resume()
    reason = death("sentiment", reply)
    assert re.match(rf"vLLM's engine process was ended by SIGKILL \({MEMORY}{NO_KILL}\)\. Remedy: ", reason), reason
    assert "find what on this machine ends processes" in reason


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        pytest.param(
            {"worker_extension_cls": f"{PLANTED}.Greedy"},
            r"RuntimeError: .*can't allocate memory.* \(.*GiB were free.*\)\. Remedy: lower engine_args\.",
            marks=pytest.mark.exhaustive,
        ),
        # vLLM says these two as it says the first and as it says the end of an engine that runs.
        pytest.param({"kv_cache_memory_bytes": 1024}, ".*cache blocks", marks=pytest.mark.exhaustive),
        pytest.param(
            {"worker_extension_cls": f"{PLANTED}.Killed"},
            r"vLLM's engine process was ended by SIGKILL \(.*GiB were free.*\)\. Remedy: find what",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["memory", "cache", "killed"],
)
def test_an_engine_that_cannot_start_says_why_and_leaves_no_process(
    arguments: dict[str, Any], reason: str, tiny: Path
) -> None:
    spec = tiny_spec(tiny, **arguments).model_copy(update={"name": "dying"})
    with pytest.raises(EngineStartError) as caught:
        list(pipeline.run(spec, CHAT, table(chat("hi")), TIMEOUTS))
    print("REASON", caught.value.message)
    assert re.match(f"engine vllm of model dying does not start: {reason}", caught.value.message), caught.value.message
    until(lambda: not engine_processes("dying"))
