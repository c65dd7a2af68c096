"""`batchyard up`: starts whole, stays whole, ends whole, and says why it cannot."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from batchyard import settings
from batchyard.errors import ConfigurationError
from batchyard.local import ports, process
from batchyard.local.stack import Stack
from tests.support.stacks import PATIENCE, RunningStack, a_chat
from tests.support.terminal import batchyard, separate_process

NAMES = ("gateway", "web", "worker", "housekeeper", "webhooks", "beat", "flower", "redis", "ray")
ECHO = "[models.echo]\nengine = 'echo'\n"
SIMULATED = {"BATCHYARD_ALLOW_SIMULATED": "1"}


def eventually(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + PATIENCE * seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def ready(stack: RunningStack) -> bool:
    try:
        with urllib.request.urlopen(f"{stack.url}/readyz", timeout=30) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def refused(data: Path, models: str = ECHO, port: int = 0, **options: str) -> str:
    """Return why no stack starts on this data folder. Test `a_second_up` shows how the command says it."""
    file = data.parent / "models.toml"
    file.write_text(models)
    in_force = settings.load(data=data, models=file, allow_simulated=True, **options)
    with pytest.raises(ConfigurationError) as refusal:
        Stack(in_force, port=port, flower_port=0)
    return refusal.value.message


def runs(stack: RunningStack, name: str) -> bool:
    """True if the process that a pid file names runs."""
    with suppress(ValueError, psutil.NoSuchProcess):  # the file is being written, or the process has ended
        pid = int((stack.data / "run" / f"{name}.pid").read_text())
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(scope="module")
def started_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A stack for tests that kill things, in a folder whose name no socket could have, beside modules named as ours."""
    folder = tmp_path_factory.mktemp("stack") / ("a folder with a long name & spaces " + "x" * 80)
    folder.mkdir()
    (folder / "models.toml").write_text(ECHO)
    for name in ("inference", "recipes", "results", "store", "tasks", "webapp"):
        (folder / f"{name}.py").write_text("raise ImportError('this is the user's own')\n")
    stack = RunningStack.restart(folder / "data", **SIMULATED)
    yield stack
    stack.kill()


@pytest.fixture
def private_stack(started_stack: RunningStack) -> RunningStack:
    """The same stack, restarted if a test has ended it."""
    if started_stack.process.poll() is not None:
        started_stack.become(RunningStack.restart(started_stack.data, **SIMULATED))
    eventually(lambda: all(runs(started_stack, name) for name in NAMES), "what a test has killed runs again")
    return started_stack


@pytest.fixture
def flower(private_stack: RunningStack) -> str:
    """The address of Flower, which answers. A start does not wait for it."""
    address = str(json.loads((private_stack.data / "run" / "stack.json").read_text())["flower"])
    port = int(address.rpartition(":")[2])
    eventually(lambda: ports.answers("127.0.0.1", port), "Flower answers")
    return address


def test_the_data_folder_holds_a_pid_file_and_a_log_of_every_process(private_stack: RunningStack) -> None:
    for name in NAMES:
        assert psutil.pid_exists(int((private_stack.data / "run" / f"{name}.pid").read_text()))
        assert (private_stack.data / "logs" / f"{name}.log").is_file()


def test_secrets_can_be_read_by_their_owner_only(private_stack: RunningStack) -> None:
    for name in ("admin.key", "flower.auth", "ray.token"):
        assert (private_stack.data / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("with_token", [False, True])
def test_ray_answers_those_with_the_stacks_token_only(private_stack: RunningStack, with_token: bool) -> None:
    theirs = private_stack.processes("worker")[0].environ()
    code = "import sys; from ray._raylet import GcsClient; print(GcsClient(sys.argv[1]).internal_kv_keys(b'', None))"
    names = {name for name in theirs if name.startswith("RAY_") and (with_token or "AUTH" not in name)}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code, theirs["RAY_ADDRESS"]],
        env={name: theirs[name] for name in {"PATH", *names}},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode == 0, "b'" in ended.stdout) == (with_token, with_token), ended.stderr
    assert with_token or "authenticat" in ended.stderr.lower()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems show connections to root only")
def test_everything_listens_on_this_machine_only(private_stack: RunningStack) -> None:
    listening = []
    for entry in process.tagged(str(private_stack.data)):
        with suppress(psutil.NoSuchProcess):  # Ray and Celery end processes that they need no more
            connections = entry.net_connections("inet")
            listening += [(entry.name(), used.laddr) for used in connections if used.status == psutil.CONN_LISTEN]
    assert len(listening) >= 3
    assert [where for where in listening if where[1].ip not in ("127.0.0.1", "::ffff:127.0.0.1")] == []


def test_flower_wants_a_password(flower: str) -> None:
    assert httpx.get(f"{flower}/api/workers", timeout=60).status_code == 401


def test_flower_shows_each_task_of_a_batch_with_the_batchs_name_and_workers_of_the_deployments_name(
    private_stack: RunningStack, flower: str
) -> None:
    user, password = (private_stack.data / "flower.auth").read_text().strip().split(":")

    def told(what: str) -> dict[str, Any]:
        return dict(httpx.get(f"{flower}/api/{what}", auth=(user, password), timeout=60).json())

    def shown(batch: Any) -> dict[str, tuple[str, str]]:
        tasks = told("tasks").values()
        found = [(task["name"], (task["args"] or "").strip('"'), task["worker"]) for task in tasks]
        return {name: (args, worker) for name, args, worker in found if batch.id in args or "batch_" not in args}

    def hears() -> bool:
        batch = private_stack.wait(private_stack.submit([a_chat("id", "x")]))
        with suppress(AssertionError):
            eventually(lambda: "batch.segment" in shown(batch), "Flower has heard of it", 2)
            return True
        return False

    eventually(hears, "Flower hears of tasks, which it does not while it or its broker starts")
    steps = {"post_process": [{"step": "parquet"}]}
    batch = private_stack.wait(
        private_stack.submit([a_chat("id", "x")], metadata={"name": "the nightly run"}, extra_body=steps)
    )
    known = f"({batch.id}, 'the nightly run'"
    expected = {
        "batch.validate": (f"{known})", "housekeeper@batchyard"),
        "batch.segment": (f"{known}, segment 1, epoch 1)", "worker@batchyard"),
        "batch.merge": (f"{known})", "housekeeper@batchyard"),
        "post.parquet": (f"{known}, 0)", "housekeeper@batchyard"),
        "batch.finish": (f"{known})", "housekeeper@batchyard"),
    }
    eventually(lambda: expected.items() <= shown(batch).items(), "the tasks of the batch are in Flower", 30)
    assert shown(batch) == expected, "and beat's tasks are not there"
    names = {f"{name}@batchyard" for name in ("worker", "housekeeper", "webhooks")}
    eventually(lambda: names <= told("workers?refresh=1").keys(), "each has answered Flower, which waits for a second")
    assert told("workers?refresh=1").keys() <= names


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show what a process has mapped")
def test_one_process_joins_ray_for_all_segments_and_the_rest_never_do(private_stack: RunningStack) -> None:
    def joined(name: str) -> list[bool]:
        found = []
        for entry in private_stack.processes(name):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                found.append(any("_raylet" in mapped.path for mapped in entry.memory_maps()))
        return found

    batches = [private_stack.submit([a_chat(f"id-{n}", f"{n} of {at}") for n in range(50)]) for at in range(3)]
    for batch in batches:
        assert private_stack.wait(batch).status == "completed"
    assert joined("worker") == [True]
    assert len(private_stack.processes("housekeeper")) > 2
    for name in ("housekeeper", "webhooks", "beat", "web"):
        assert not any(joined(name)), name


def test_a_second_up_on_the_same_data_names_who_holds_it(private_stack: RunningStack) -> None:
    options = ("--data", private_stack.data, "--port", "0", "--flower-port", "0")
    second = separate_process("up", *options, folder=private_stack.data.parent, **SIMULATED)
    assert (second.returncode, second.stdout, second.stderr.count("\n")) == (2, "", 1), second
    assert second.stderr.startswith(f"batchyard: data folder {private_stack.data} is held by ")
    assert f"pid {private_stack.process.pid}" in second.stderr
    eventually(lambda: ready(private_stack), "it runs on")


def kill_and_wait(private_stack: RunningStack, *names: str) -> None:
    """Kill these processes, and wait until others run in their place."""
    files = {name: private_stack.data / "run" / f"{name}.pid" for name in names}
    before = {name: file.read_text() for name, file in files.items()}
    for pid in before.values():
        os.kill(int(pid), signal.SIGKILL)
    for name, file in files.items():
        eventually(lambda: file.read_text() not in ("", before[name]), f"{name} has a new pid")  # noqa: B023
    eventually(lambda: ready(private_stack), "the stack is ready again")


@pytest.mark.parametrize("names", [NAMES[:7], ["redis"]], ids=["services", "redis"])
def test_a_killed_process_is_started_again(private_stack: RunningStack, names: Sequence[str]) -> None:
    kill_and_wait(private_stack, *names)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each service is a program of its own")
def test_services_that_end_with_the_process_that_forks_them_are_started_again(private_stack: RunningStack) -> None:
    before = {name: private_stack.processes(name)[0] for name in NAMES}
    server = before["web"].parent()
    assert server is not None and server != psutil.Process(private_stack.process.pid)
    server.kill()
    services = [name for name in NAMES if name not in ("redis", "ray")]
    eventually(lambda: not any(before[name].is_running() for name in services), "all services have ended")
    eventually(lambda: ready(private_stack), "the stack is ready again")
    assert before["redis"].is_running() and before["ray"].is_running()
    assert private_stack.wait(private_stack.submit([a_chat("id", "by new services")])).status == "completed"


def test_a_killed_ray_is_started_again_and_the_logs_of_a_batch_tell_how_its_engine_started(
    private_stack: RunningStack, tmp_path: Path
) -> None:
    kill_and_wait(private_stack, "ray")  # and with it the engines of earlier batches
    batch = private_stack.wait(private_stack.submit([a_chat("id", "a new cluster")]))

    def logged() -> str:
        return batchyard("logs", batch.id, "--data", private_stack.data, folder=tmp_path).stdout

    eventually(lambda: "worker: segment ended" in logged(), "the worker has said so, after the commit of the answers")
    shown = logged()
    assert re.search(r"Z engine: engine starts \(.*model echo", shown), shown
    assert shown.index("worker: segment started") < shown.index("engine: engine started")
    assert shown.index("engine: engine started") < shown.index("worker: segment ended")


def test_the_start_says_what_it_waits_for(private_stack: RunningStack) -> None:
    said = (private_stack.data.parent / "up.log").read_text()
    assert "Started redis, ray, worker, " in said
    assert "Waiting for " in said


def test_a_killed_up_leaves_nothing_after_the_next_which_two_signals_end_at_once(private_stack: RunningStack) -> None:
    before = process.tagged(str(private_stack.data))
    assert len(before) > len(NAMES)
    private_stack.process.kill()
    private_stack.process.wait()
    if sys.platform == "linux":  # it tells children that their parent has died
        eventually(lambda: process.tagged(str(private_stack.data)) == [], "everything has ended")
    # On IPv6, and with proxies at which nothing answers.
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup pytest` ignores it, and what it starts inherits that
    again = RunningStack.restart(private_stack.data, options=["--host", "[::1]"], **SIMULATED, **proxies)
    signal.signal(signal.SIGHUP, ours)

    def says(text: str) -> bool:
        return text in (again.data.parent / "up.log").read_text()

    try:
        assert again.key == private_stack.key
        assert re.fullmatch(r"http://\[::1\]:\d+", again.url)
        shown = batchyard("models", "--data", again.data, folder=again.data.parent, **proxies)
        assert "echo" in shown.stdout, shown.stderr
        assert [entry for entry in before if entry.is_running()] == []
        for name in ("worker", "housekeeper"):
            again.processes(name)[0].suspend()  # so that it does not end itself
        again.submit([a_chat("a", "hello", model="echo")])
        again.process.send_signal(signal.SIGHUP)
        # Others may be late as well, and a busy machine may not count the segments in time.
        reason = re.compile(r"Stopping: waits for .*worker \(.*segments.*\).*\. Ctrl-C again ends all at once\.")
        eventually(lambda: bool(reason.search((again.data.parent / "up.log").read_text())), "the reason")
        assert not says("at once: kills")
        again.process.send_signal(signal.SIGINT)
        assert again.process.wait(60) == 0
        assert says("Stopping at once: kills what still runs.")
        assert says(f"1 batch or job has not ended: to go on with it, start the stack on {again.data} again.")
        assert process.tagged(str(again.data)) == []
        assert list((again.data / "run").glob("*.pid")) == []
    finally:
        again.kill()


@pytest.mark.long
def test_a_port_that_is_taken_is_named_with_its_holder_and_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused(tmp_path / "data", port=port)
        assert f"port {port}" in message
        assert f"pid {os.getpid()}" in message
        assert "--port" in message
    assert process.tagged(str(tmp_path / "data")) == []


def test_flower_takes_another_port_if_its_own_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = ports.plan("127.0.0.1", 0, port)["flower"].number
    assert other not in (0, port)
    assert f"Flower takes port {other}: port {port} on 127.0.0.1 is taken by" in caplog.text


@pytest.mark.long
def test_a_redis_that_does_not_answer_stops_the_start(tmp_path: Path) -> None:
    refusal = refused(tmp_path / "data", redis_url="rediss://127.0.0.1:1/0")
    assert refusal.startswith("REDIS_URL: the server cannot be used: ")


@pytest.mark.long
def test_wrong_models_stop_the_start(tmp_path: Path) -> None:
    assert "models.echo.engin: unknown key" in refused(tmp_path / "data", models="[models.echo]\nengin = 'echo'\n")
    assert not (tmp_path / "data").exists()


@pytest.mark.long
def test_data_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with sqlite3.connect(tmp_path / "data" / "batchyard.db") as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")
    assert "newer version" in refused(tmp_path / "data")


def test_a_low_limit_of_open_files_is_noticed() -> None:
    code = "from batchyard.endpoints import live_wire; print(live_wire.few_connections())"
    for limit, noticed in ((256, "256"), (8192, "None")):
        command = ["bash", "-c", f'ulimit -n {limit}; exec {sys.executable} -c "{code}"']
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == noticed
