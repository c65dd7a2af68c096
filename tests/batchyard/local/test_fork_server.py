"""A fork server's copies are programs of their own: output, environment, tag, name, exit code; none outlives it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from batchyard.errors import BatchyardError, ConfigurationError
from batchyard.local import fork_server, process, services
from batchyard.local.fork_server import TAG, ForkedProcess, ForkServer, ServiceProgram
from tests.support.rows import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each service is a program of its own"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    # Each server, also one that takes another's place, imports module `shared` instead of those of the services.
    shared = "from batchyard.local import fork_server\nfork_server._SHARED = ('shared',)\n"
    (tmp_path / "sitecustomize.py").write_text(shared)
    (tmp_path / "shared.py").touch()
    (tmp_path / "waits.py").write_text("import sys, time\nprint(sys.argv[1:], flush=True)\ntime.sleep(600)\n")
    (tmp_path / "ends.py").write_text("import atexit\natexit.register(print, 'bye')\nraise SystemExit(3)\n")
    (tmp_path / "shown.py").write_text("import os\nprint(dict(os.environ))\n")
    folders = f"{tmp_path}:{services.import_path()['PYTHONPATH']}"
    started = ForkServer({**os.environ, "PYTHONPATH": folders}, tmp_path)
    yield started
    started.close()


@pytest.fixture
def start(server: ForkServer, tmp_path: Path) -> Callable[..., ForkedProcess]:
    """Starts a module as a copy of the server."""

    def start(name: str, *arguments: str) -> ForkedProcess:
        environment = {TAG: f"{tmp_path}#{name}", "PATH": "/bin"}
        argv = ["env", "A=1", sys.executable, "-m", name, *arguments]
        return server.fork(ServiceProgram(name, argv, environment, tmp_path / f"{name}.log", signal.SIGTERM, 3))

    return start


def ended(copy: ForkedProcess) -> int | None:
    """Return the exit code of a process that ends."""
    until(lambda: copy.poll() is not None)
    return copy.poll()


def written(log: Path) -> str:
    """Return a log once it has a line."""
    until(lambda: log.is_file() and bool(log.read_text()))
    return log.read_text()


def test_a_copy_has_its_own_arguments_session_name_and_tag(start: Callable[..., ForkedProcess], tmp_path: Path) -> None:
    copy = start("waits", "--for=ever")
    assert written(tmp_path / "waits.log") == "['--for=ever']\n"
    (seen,) = process.tagged(f"{tmp_path}#waits")
    assert (seen.pid, os.getsid(seen.pid), seen.nice()) == (copy.pid, copy.pid, min(os.nice(0) + 3, 19))
    assert seen.environ() == {TAG: f"{tmp_path}#waits", "PATH": "/bin"}
    assert seen.name() == "waits"
    assert seen.cmdline()[0].startswith("batchyard waits: waits --for=")
    assert copy.poll() is None
    copy.send_signal(signal.SIGTERM)
    assert ended(copy) == -signal.SIGTERM
    copy.send_signal(signal.SIGTERM)  # to nobody


def test_a_copy_ends_as_a_program_does(start: Callable[..., ForkedProcess], tmp_path: Path) -> None:
    assert ended(start("ends")) == 3
    assert (tmp_path / "ends.log").read_text() == "bye\n"
    assert ended(start("nothing")) == 1
    assert "No module named nothing" in (tmp_path / "nothing.log").read_text()


def test_a_copy_has_its_own_environment_alone(start: Callable[..., ForkedProcess], tmp_path: Path) -> None:
    assert ended(start("shown")) == 0
    assert (tmp_path / "shown.log").read_text() == str({TAG: f"{tmp_path}#shown", "PATH": "/bin"}) + "\n"


@pytest.mark.long
def test_copies_end_with_a_killed_server_and_another_one_starts_the_next(
    server: ForkServer, start: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    server.begin_imports(os.environ)
    copy = start("waits")
    assert written(tmp_path / "waits.log")
    killed = psutil.Process(server.pid)
    killed.kill()
    assert ended(copy) == -signal.SIGKILL
    again = start("waits")
    assert again.poll() is None
    assert psutil.Process(again.pid).ppid() not in (killed.pid, os.getpid())


@pytest.mark.long
def test_imports_that_hang_end_the_server_and_say_so(
    server: ForkServer, start: Callable[..., ForkedProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fork_server, "IMPORT_SECONDS", 0.1)
    (tmp_path / "shared.py").write_text("import time\ntime.sleep(600)\n")
    server.begin_imports(os.environ)
    with pytest.raises(BatchyardError, match="not imported within 0 s"):
        start("waits")
    monkeypatch.undo()
    (tmp_path / "shared.py").write_text("")
    assert start("waits").poll() is None, "another server has started"


def test_what_cannot_be_imported_is_named(
    server: ForkServer, start: Callable[..., ForkedProcess], tmp_path: Path
) -> None:
    (tmp_path / "shared.py").write_text("raise ImportError('broken')\n")
    server.begin_imports(os.environ)
    with pytest.raises(BatchyardError, match="shared cannot be imported: ImportError: broken"):
        start("waits")


def test_what_is_called_in_the_server_returns_or_raises_here(server: ForkServer, tmp_path: Path) -> None:
    assert server.call(os.getpid) == server.pid
    with pytest.raises(ConfigurationError, match="no such thing"):
        server.call(exec, "from batchyard.errors import ConfigurationError as Error; raise Error('no such thing')", {})
    with pytest.raises(FileNotFoundError):
        server.call(os.stat, tmp_path / "missing")
    psutil.Process(server.pid).kill()
    with pytest.raises(BatchyardError, match="fork server ended with exit code -9"):
        server.call(os.getpid)
