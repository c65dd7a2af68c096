"""A plugin of pytest with the stack whose processes tests kill.

Who kills a process waits until the stack has started it again, and leaves the stack to the next test. Tests keep out of
each other's way by models, projects and ids: the models below are of one file each, unless they only echo.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchyard.endpoints.catalog import ENDPOINTS
from tests.chaos import relay
from tests.support import recipes
from tests.support.misbehaving import MisbehavingServer
from tests.support.servers import listening
from tests.support.stacks import ROOT, RunningStack
from tests.support.traces import Collector, collecting

SEGMENT = 128
JUDGE_SECONDS = 6
SETTINGS = {
    "BATCHYARD_ALLOW_SIMULATED": "1",
    "BATCHYARD_ENGINE_IDLE_SECONDS": "90",  # no file's engines take memory from the next ones
    "BATCHYARD_FORECAST_SECONDS": "1",
    "BATCHYARD_GARBAGE_GRACE_SECONDS": "5",
    "BATCHYARD_HOUSEKEEPING_SECONDS": "1",
    "BATCHYARD_JUDGE_SECONDS": str(JUDGE_SECONDS),
    "BATCHYARD_LEASE_SECONDS": "10",  # of a worker that is killed they end at once
    "BATCHYARD_LIVE_REQUESTS_PER_MINUTE": "100000",
    "BATCHYARD_MAX_SEGMENTS": "2",
    "BATCHYARD_MIN_WINDOW": "1s",
    "BATCHYARD_SEGMENT_ATTEMPTS": "2",
    "BATCHYARD_SEGMENT_REQUESTS": str(SEGMENT),
    "BATCHYARD_WEBHOOKS_ALLOW_PRIVATE": "1",
}


def models(calls: Path, server: MisbehavingServer) -> str:
    """Return the models file; engines that log their requests write to `calls`.

    Each death of an engine costs a start: the fewer requests are in flight, the fewer deaths tell which one kills. The
    bundled models run on engine transformers, which starts fastest.
    """
    bundled = (ROOT / "models.toml").read_text().replace('"auto"', '"transformers"').replace('"./', f'"{ROOT}/')
    return f"""
currency = "EUR"
[models.echo]
engine = "echo"
engine_args = {{ latency_ms = 200, call_log = "{calls}" }}
[models.logged]
engine = "echo"
max_in_flight = 16
price = {{ input = 1, output = 2 }}
engine_args = {{ latency_ms = 150, call_log = "{calls}" }}
[models.poisoned]
engine = "echo"
max_in_flight = 8
engine_args = {{ die_on = "arsenic" }}
[models.broken]
engine = "echo"
engine_args = {{ start_error = "no weights in this folder" }}
[models.paced]
engine = "echo"
engine_args = {{ slots = 16, ms_per_token = 20 }}
[models.brittle]
engine = "echo"
engine_args = {{ ms_per_token = 20, die_on = "arsenic" }}
[models.mortal]
engine = "echo"
max_in_flight = 8
engine_args = {{ latency_ms = 500 }}
[models.doomed]
engine = "echo"
max_in_flight = 1
engine_args = {{ die_on = "x" }}
[models.busy]
engine = "echo"
max_in_flight = 8
engine_args = {{ latency_ms = 500 }}
[models.idle]
engine = "echo"
engine_args = {{ call_log = "{calls}-of-idle" }}
[models.slow]
engine = "echo"
max_in_flight = 8
engine_args = {{ latency_ms = 200 }}
[models.failing]
engine = "echo"
engine_args = {{ fail_every = 3 }}
[models.every]
engine = "echo"
endpoints = {list(ENDPOINTS)}
[models.every.adapters.every-other]
[models.fake]
engine = "openai"
engine_args = {{ backoff_seconds = 0.05, endpoints = [{{ url = "{server.url}" }}] }}
{bundled}
"""


@pytest.fixture(scope="session")
def faulty_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which engines of stack `faulty` write a line for each request."""
    file = tmp_path_factory.mktemp("faulty") / "calls"
    file.touch()
    return file


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """It takes the spans of stack `faulty`."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="session")
def misbehaving() -> Iterator[MisbehavingServer]:
    """The server behind model `fake` of stack `faulty`."""
    with listening(MisbehavingServer(serves="fake")) as server:
        assert isinstance(server, MisbehavingServer)
        yield server


@pytest.fixture(scope="session")
def faulty_temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files of stack `faulty`."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="session")
def faulty(
    start_shared_stack: Callable[..., RunningStack],
    faulty_calls: Path,
    collector: Collector,
    misbehaving: MisbehavingServer,
    faulty_temporary: Path,
) -> RunningStack:
    """A stack whose processes are killed, as a shell starts it: with few open files. Its leases are short."""
    own = recipes.write_recipes(faulty_calls.parent)
    (own / "relay.py").write_text(relay.RECIPE)
    (own / "flows.py").write_text(recipes.FLOWS)
    folders = {"BATCHYARD_RECIPES": str(own), "TMPDIR": str(faulty_temporary)}
    with few_files():
        return start_shared_stack(models(faulty_calls, misbehaving), **SETTINGS, **collector.environment, **folders)


@contextmanager
def few_files() -> Iterator[None]:
    """Start processes with as many open files as a shell allows them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def restart(stack: RunningStack, data: Path) -> None:
    """Start a stack that was killed again, on this data folder. The next tests use it."""
    with few_files():
        stack.become(RunningStack.restart(data, **stack.environment))
