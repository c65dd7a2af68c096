"""One process imports what the services of a local stack share, and forks them: most of a start is imports.

Its copies have the pages of what it has imported in common. It runs one thread and keeps no connection, so a copy may
do as it likes. The fork server of `multiprocessing` would outlive a killed stack, and adds a process that tracks what
nobody here uses.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from batchyard import kinship
from batchyard.errors import BatchyardError

OWN_FILES = 0o077
"""The umask of a stack's processes: what they write is for their user alone."""
# Settings refuse unknown BATCHYARD_* names, and nobody sets this one in a shell by accident.
TAG = "_BATCHYARD_STACK"
"""The variable of a process's environment that says whose it is: `<data folder>#<name of the service>`."""
_SHARED = (
    "tasks.app",
    "webapp.application",
    "webapp.gateway.live",
    "webapp.gateway.proxy",
    "celery.bin.celery",
    "celery.apps.worker",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.concurrency.thread",
    "celery.concurrency.prefork",
    "gunicorn.app.wsgiapp",
    "gunicorn.workers.gthread",
)
IMPORT_SECONDS = 120.0
"""Imports that take longer hang, as those of somebody's recipe may."""
_ROOM = "-" * 8192
"""The memory of the server's environment, which shows that of a copy, is longer by so much than what it needs."""


@dataclass(frozen=True)
class ServiceProgram:
    """What a copy of the server becomes: the module and the arguments that follow `-m` in `argv`.

    `environment`, which has a TAG, is all of its environment, and its output is added to the file `log`. It gets
    `orphan_signal` when the server ends. `nice` lowers its priority by so much.
    """

    name: str
    argv: list[str]
    environment: dict[str, str]
    log: Path
    orphan_signal: signal.Signals
    nice: int


class ForkServer:
    """The server as its starter sees it. It ends with the thread that has started it.

    Args:
        environment: the server's, all of it.
        place: what its copies' tags have before the name. Its own is no such tag, as it ends by itself.
    """

    def __init__(self, environment: Mapping[str, str], place: Path) -> None:
        self._environment = {TAG: f"the fork server of {place}", **environment, "_BATCHYARD_ROOM": _ROOM}
        self._shared_environment: Mapping[str, str] | None = None
        self._start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the server, and return its result or raise its exception; all of these are pickled."""
        self._send(function, *arguments)
        return self._reply()

    def begin_imports(self, environment: Mapping[str, str]) -> None:
        """Have the server import what services share, in their environment. What is asked next waits for that."""
        self._shared_environment = environment
        self._send(_import_shared, dict(environment))
        self._importing = True

    def fork(self, program: ServiceProgram) -> ForkedProcess:
        """Start a program as a copy of the server, in a session of its own. Restarts a server that has ended."""
        if self._process.poll() is not None:
            self._start()
            assert self._shared_environment is not None
            self.begin_imports(self._shared_environment)
        return ForkedProcess(self, self.call(_fork, program))

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the server, whatever it does, and with it all programs."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        # Not by its module's name: what is pickled would come from another module than what is run.
        code = f"from batchyard.local import fork_server; fork_server.serve({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                umask=OWN_FILES,
                preexec_fn=kinship.end_with_parent,
            )
        self._importing = False

    def _send(self, function: Callable[..., Any], *arguments: Any) -> None:
        if self._importing:
            self._importing = False
            if not self._connection.poll(IMPORT_SECONDS):
                self.close()
                raise BatchyardError(f"the modules of the services were not imported within {IMPORT_SECONDS:.0f} s")
            self._reply()
        try:
            self._connection.send((function, arguments))
        except OSError as error:
            raise self._ended() from error

    def _reply(self) -> Any:
        try:
            result, error = self._connection.recv()
        except (EOFError, OSError) as ended:
            raise self._ended() from ended
        if error is not None:
            raise error
        return result

    def _ended(self) -> BatchyardError:
        return BatchyardError(f"the fork server ended with exit code {self._process.wait()}")


class ForkedProcess:
    """A copy of the server, with what a stack needs of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code, which is negative for a signal; None while the process runs."""
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            os.close(self._end)
            try:
                self.returncode = self._server.call(_exit_code, self.pid)
            except (BatchyardError, ChildProcessError):
                self.returncode = -signal.SIGKILL  # it has ended with its server
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)  # nobody else has this number before `poll` has asked for the exit code


class _Copied(BaseException):  # no error: it leaves the server's loop
    """This process is a copy that is to become a program."""

    def __init__(self, program: ServiceProgram) -> None:
        self.program = program


def serve(descriptor: int) -> None:
    """Do what the process at the other end of a connection says, until it closes it; a copy becomes its program."""
    connection = Connection(descriptor)
    try:
        while True:
            try:
                function, arguments = connection.recv()
            except EOFError:
                return
            try:
                connection.send((function(*arguments), None))
            except Exception as error:  # noqa: BLE001  # it is raised where the call was made
                connection.send((None, error))
    except _Copied as copied:
        connection.close()
        program = copied.program
    _replace_environment(program.environment)
    words = program.argv[program.argv.index("-m") + 1 :]
    kinship.take_identity(program.name, f"batchyard {program.name}: {' '.join(words)}", program.environment)
    os.setsid()
    kinship.end_with_parent(program.orphan_signal)
    os.nice(program.nice)
    with program.log.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _import_shared(environment: dict[str, str]) -> None:
    _replace_environment(environment)
    for name in _SHARED:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise BatchyardError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    gc.collect()
    gc.freeze()  # a collection in a copy would write to each of these pages


def _fork(program: ServiceProgram) -> int:
    if pid := os.fork():
        return pid
    raise _Copied(program)


def _exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _replace_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
