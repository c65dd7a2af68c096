"""Engine server: a command's server is started, asked, watched and ended, with all its processes."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from batchyard.errors import ConfigurationError, EngineDied, EngineStartError
from batchyard.failures.reasons import explained
from batchyard.models import ModelSpec
from inference import catalog
from inference.doctor import checks
from inference.engine import EngineAnswer
from inference.engines.openai import supervisor
from inference.engines.openai.server import Server
from tests.support.rows import all_answers, chat, until
from tests.support.stacks import ROOT

CHAT = "/v1/chat/completions"
SCRIPT = ROOT / "tests/support/owned_server.py"


def spec(*flags: str, **arguments: Any) -> ModelSpec:
    command = shlex.join(["python", str(SCRIPT), "--host", "{host}", "--port", "{port}", "--model", "theirs", *flags])
    quick = {"backoff_seconds": 0.02, "watch_seconds": 0.02, "command": command}
    return ModelSpec(name="ours", engine="server", engine_args=quick | arguments)


@asynccontextmanager
async def started(model: ModelSpec, request_timeout: float = 60.0) -> AsyncIterator[Server]:
    engine = Server(model, request_timeout)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def processes() -> list[psutil.Process]:
    """The processes below this one: supervisor, server and what that has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if str(SCRIPT) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def server_process() -> psutil.Process:
    (found,) = (process for process in processes() if supervisor.__name__ not in process.cmdline())
    return found


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def events(engine: Server, text: str) -> list[bytes]:
    stream = await engine.stream(CHAT, {**chat(text)[0], "stream": True})
    assert not isinstance(stream, EngineAnswer)
    return [event async for event in stream]


def test_a_server_answers_under_the_name_of_the_entry_and_ends_with_the_engine(tmp_path: Path) -> None:
    async def scene() -> None:
        async with started(spec("--child", str(tmp_path / "child"), stop_seconds=1)) as engine:
            assert len(processes()) == 2
            (answer,) = await all_answers(engine, CHAT, chat("hello"))
            assert answer.body is not None and answer.body["model"] == "ours"
            assert answer.body["batchyard"]["served_model"] == "theirs"
            assert any(b"hello" in event for event in await events(engine, "hello"))
            assert engine.versions() == {"engine": "server", "model": "theirs"}

    asyncio.run(scene())
    assert not processes() and gone(int((tmp_path / "child").read_text()))


def test_a_server_that_does_less_than_openais_is_used_and_what_it_ignores_is_an_error() -> None:
    bodies = [*chat("hello", max_completion_tokens=3), *chat("hello", n=2), *chat("hello", logprobs=True)]

    async def scene() -> None:
        async with started(spec("--bare", model="theirs")) as engine:
            limited, *ignored = await all_answers(engine, CHAT, bodies)
            assert limited.status_code == 200, limited
            assert [answer.body and answer.body["error"]["param"] for answer in ignored] == ["n", "logprobs"]
            assert (await events(engine, "hello"))[-1] == b"data: [DONE]\n\n"
            await asyncio.sleep(0.1)  # probes
            assert engine.endpoints()[0]["health"] == "healthy"

    asyncio.run(scene())


def test_its_environment_has_the_gpus_of_the_actor_and_what_the_entry_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    async def scene() -> dict[str, str]:
        async with started(spec(env={"COLOUR": "green"})) as engine:
            (url,) = (entry["url"] for entry in engine.endpoints())
            async with httpx.AsyncClient(timeout=60) as http:
                shown: dict[str, str] = (await http.get(f"{url.removesuffix('/v1')}/environment")).json()
            return shown

    shown = asyncio.run(scene())
    assert (shown["CUDA_VISIBLE_DEVICES"], shown["COLOUR"]) == ("3,4", "green") and "OMP_NUM_THREADS" not in shown
    assert shown["PATH"].startswith(str(Path(sys.executable).parent))


@pytest.mark.parametrize(
    ("model", "cause", "remedy"),
    [
        (spec("--exits", "ValueError: no such layer"), "ended with exit code 3: ValueError: no such layer", "by hand"),
        (spec("--exits", "out of ideas"), "ended with exit code 3: it begins | out of ideas", "by hand"),
        (spec(command="no-such-program --port {port}"), "program no-such-program cannot be started", "install no-such"),
        (spec(model="mine"), "it lists theirs, not mine", "set engine_args.model"),
    ],
)
def test_a_command_that_cannot_serve_says_why_and_what_to_do(model: ModelSpec, cause: str, remedy: str) -> None:
    with pytest.raises(EngineStartError) as failure:
        asyncio.run(Server(model, 5.0).start())
    reason = explained(failure.value.message)
    assert cause in reason and remedy in reason.partition("Remedy: ")[2]
    assert not processes()


def test_a_server_that_is_not_ready_says_what_it_waits_for() -> None:
    async def scene() -> str:
        engine = Server(spec("--never-ready"), 5.0)
        start = asyncio.create_task(engine.start())
        await asyncio.to_thread(until, lambda: "503" in engine.waits_for)
        start.cancel()
        await asyncio.wait([start])
        await engine.stop()
        return engine.waits_for

    assert asyncio.run(scene()) == "GET /health is answered with HTTP 503 Service Unavailable"
    assert not processes()


@pytest.mark.parametrize("victim", ["server", "supervisor"])
def test_a_killed_server_ends_all_calls_and_what_it_has_started(tmp_path: Path, victim: str) -> None:
    async def scene() -> list[Any]:
        async with started(spec("--seconds", "300", "--child", str(tmp_path / "child")), 600.0) as engine:
            calls = [*(engine.answer(CHAT, body) for body in chat(*map(str, range(40)))), events(engine, "a b c d e f")]
            asked = asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(0.5)
            process = server_process() if victim == "server" else server_process().parent()
            assert process is not None
            process.kill()
            outcomes = await asyncio.wait_for(asked, 60)
            with pytest.raises(EngineDied):
                await engine.answer(CHAT, chat("later")[0])
            return outcomes

    outcomes = asyncio.run(scene())
    assert {type(outcome) for outcome in outcomes} == {EngineDied}
    assert {str(outcome) for outcome in outcomes} == {"the server was ended by SIGKILL"}
    if victim == "server":  # the supervisor has adopted what was left
        assert gone(int((tmp_path / "child").read_text()))
    else:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert not processes()


def test_a_server_that_says_it_is_unwell_is_ended() -> None:
    async def scene() -> BaseException | None:
        async with started(spec("--seconds", "300"), 600.0) as engine:  # no answer before the signal arrives
            server_process().send_signal(signal.SIGUSR1)
            outcomes = await asyncio.wait_for(
                asyncio.gather(*(engine.answer(CHAT, body) for body in chat("a", "b", "c")), return_exceptions=True), 60
            )
            assert {type(outcome) for outcome in outcomes} == {EngineDied}
            return outcomes[0]

    assert "the server was ended, since GET /health is answered with HTTP 503" in str(asyncio.run(scene()))
    assert not processes()


def test_a_server_that_ignores_sigterm_is_killed_in_time() -> None:
    began = 0.0

    async def scene() -> float:
        async with started(spec("--stubborn", stop_seconds=0.5)):
            return time.monotonic()

    began = asyncio.run(scene())
    assert 0.5 <= time.monotonic() - began < 9, "and not in the 10 s of most"
    assert not processes()


def test_an_owner_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import asyncio, json, sys; from batchyard.models import ModelSpec\n"
        "from inference.engines.openai.server import Server\n"
        "async def main():\n"
        "    await Server(ModelSpec.model_validate_json(sys.argv[1]), 5.0).start()\n"
        "    print('started', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    model = spec("--child", str(tmp_path / "child"), stop_seconds=1)
    owner = subprocess.Popen([sys.executable, "-c", code, model.model_dump_json()], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    while "started" not in owner.stdout.readline():
        assert owner.poll() is None
    pids = [process.pid for process in psutil.Process(owner.pid).children(recursive=True)]
    assert len(pids) == 3
    owner.kill()
    owner.wait()
    until(lambda: all(map(gone, pids)))


def test_an_entry_may_have_the_keys_of_a_server_itself(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(
        '[models.m]\nengine = "server"\ncommand = "no-such-program --port {port}"\nenv = {A = "b"}\nnum_gpus = 2\n'
        'engine_args.model = "x"\n'
    )
    arguments = catalog.load(path)["m"].engine_args
    assert arguments == {"command": "no-such-program --port {port}", "env": {"A": "b"}, "model": "x"}
    details = [finding.detail for finding in checks.check(path, allow_simulated=False) if finding.result == "warning"]
    assert details == ["no-such-program is not installed here"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('command = "serve"', "{port}"),
        ('command = "serve \'{port}"', "quotation"),
        ('command = "serve {port}"\npython = "bin/python"', "absolute"),
        ('command = "serve {port}"\nready = "health"', "ready"),
        ("", "command"),
    ],
)
def test_what_cannot_be_a_command_is_refused_where_the_file_is_read(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(f'[models.m]\nengine = "server"\n{line}\n')
    with pytest.raises(ConfigurationError, match=problem):
        catalog.load(path)


def test_the_arguments_are_json_that_a_job_can_carry() -> None:
    assert json.loads(spec().model_dump_json())["engine_args"]["command"].startswith("python ")
