"""Engine `server`: an OpenAI-compatible server that Batchyard starts, owns and ends; else it is engine `openai`.

The engine lives as long as its server does: when the server ends, so does the engine, and the next one starts another.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import threading
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field, NonNegativeFloat, field_validator
from pydantic_core import PydanticCustomError

from batchyard.endpoints.catalog import CHAT
from batchyard.endpoints.stream_end import StreamEnd
from batchyard.errors import EngineDied, EngineError, EngineStartError
from batchyard.failures.endings import ending
from batchyard.failures.reasons import one_line
from batchyard.models import ModelSpec
from batchyard.wording import cut
from inference.engine import EngineAnswer
from inference.engines.openai import supervisor
from inference.engines.openai.client import NO_SUCH_ROUTE, EndpointClient, ProbeFailed, described
from inference.engines.openai.endpoints import FAILURES, RemoteEndpoint
from inference.engines.openai.engine import OpenAI, OpenStream, PassedOn
from inference.engines.process_output import last_exception

HOST = "127.0.0.1"
READY = "/health"
PROBE_PAUSE = 0.25
END_SECONDS = 3.0
"""A server that breaks off a stream because it ends has ended within this time."""
TAIL_BYTES = 2**16
LAST_SECONDS = 1.0
"""The last lines of a server that has ended are read within this time."""
ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b")
MAX_LINE = 160
"""Characters of a server's last lines in a reason."""


class ServerArguments(PassedOn):
    """`engine_args` of engine server. Those of `batchyard.models.OF_SERVERS` may stand in the model's entry itself.

    `command` starts the server; it is split as a shell does, and no shell sees it. `python` names the interpreter of an
    environment whose programs come first. `ready` is answered with 200 once the server can be asked. A server has
    `stop_seconds` to end before it is killed.
    """

    command: str
    python: Path | None = None
    env: dict[str, str] = Field(default_factory=dict)
    ready: str = Field(READY, pattern="^/")
    stop_seconds: NonNegativeFloat = 10.0

    @field_validator("command")
    @classmethod
    def _splits(cls, command: str) -> str:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise PydanticCustomError("command", f"{error}; write it as for a shell") from error
        if not any("{port}" in word for word in words):
            raise PydanticCustomError("command", "write {port} where it names the port: Batchyard chooses it")
        return command

    @field_validator("python")
    @classmethod
    def _is_absolute(cls, python: Path | None) -> Path | None:
        if python is not None and not python.expanduser().is_absolute():
            raise PydanticCustomError("path", "write an absolute path: engines have working folders of their own")
        return python and python.expanduser()

    def words(self, port: int) -> list[str]:
        """Return the command's words, with its host and port in them."""
        words = shlex.split(self.command)
        return [word.replace("{host}", HOST).replace("{port}", str(port)) for word in words]

    def environment(self) -> dict[str, str]:
        """Return the environment of the server: this process's, with its GPUs, and `env`."""
        variables = dict(os.environ)
        variables.pop("OMP_NUM_THREADS", None)  # Ray's, for an actor of a thousandth of a CPU
        if self.python is not None:  # these say where this environment's modules are
            variables.pop("PYTHONPATH", None)
            variables.pop("PYTHONHOME", None)
        programs = (self.python or Path(sys.executable)).parent
        return variables | {"PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"} | self.env


class Server(OpenAI):
    """Starts a server, passes requests on to it, and ends it."""

    name: ClassVar[str] = "server"
    arguments: ClassVar[type[BaseModel] | None] = ServerArguments
    has_processes: ClassVar[bool] = True

    def __init__(self, spec: ModelSpec, request_timeout: float) -> None:
        self._server = ServerArguments.model_validate(spec.engine_args)
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        passed_on = {key: value for key, value in spec.engine_args.items() if key in PassedOn.model_fields}
        passed_on["endpoints"] = [{"url": f"http://{HOST}:{port}/v1"}]
        super().__init__(spec.model_copy(update={"engine_args": passed_on}), request_timeout)
        (self._target,) = self._endpoints.values()
        self._words = self._server.words(port)
        self._process: Process | None = None
        self._end: asyncio.Task[None] | None = None
        self._death: str | None = None
        self._tail = b""
        self._lists = True  # False: the command names a model that the server does not list
        self._refusals = 0  # probes in a row that it has answered and not passed
        self._fault: str | None = None
        self._calls: set[asyncio.Timeout] = set()

    @classmethod
    def gpus(cls, spec: ModelSpec) -> float:
        return 1

    @classmethod
    def missing(cls, spec: ModelSpec) -> str | None:
        arguments = ServerArguments.model_validate(spec.engine_args)
        program = arguments.words(0)[0]
        return None if shutil.which(program, path=arguments.environment()["PATH"]) else program

    async def start(self) -> None:
        self._client = EndpointClient()
        output, written = os.pipe()
        self._copying = threading.Thread(target=self._copy, args=[output], daemon=True, name="server's output")
        self._copying.start()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", supervisor.__name__, str(self._server.stop_seconds), *self._words),
                stdin=PIPE,
                stdout=written,
                stderr=STDOUT,
                env=self._server.environment(),
                start_new_session=True,
            )
        finally:
            os.close(written)
        self._end = asyncio.create_task(self._note_end(self._process))
        try:
            while (reason := await self._unready()) is not None:
                self.waits_for = reason
                await asyncio.wait([self._end], timeout=PROBE_PAUSE)
                if self._end.done():
                    raise EngineStartError(f"before it could be asked, {self._death}")
        except EngineStartError:
            await self.stop()
            raise
        self._target.probed(time.monotonic())
        self._watch = asyncio.create_task(self._keep_watch())

    async def answer(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer:
        async with self._alive():
            return await super().answer(endpoint, body)

    async def stream(self, endpoint: str, body: dict[str, Any]) -> EngineAnswer | AsyncGenerator[bytes]:
        async with self._alive():
            return await super().stream(endpoint, body)

    def _parameters(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        parameters = super()._parameters(endpoint, body)
        if endpoint == CHAT.path and "max_completion_tokens" in parameters:  # `transformers serve` ignores this name
            parameters["max_tokens"] = parameters.pop("max_completion_tokens")
        return parameters

    async def _events(self, opened: OpenStream, end: StreamEnd, *, shows_usage: bool) -> AsyncGenerator[bytes]:
        assert self._end is not None
        try:
            async with aclosing(super()._events(opened, end, shows_usage=shows_usage)) as events:
                async for event in events:
                    yield event
        except EngineError as error:
            await asyncio.wait([self._end], timeout=END_SECONDS)
            if self._death is None:
                raise
            raise EngineDied(self._death) from error

    def versions(self) -> dict[str, str]:
        """Return the model and its server's version; the port says nothing about answers."""
        return {key: value for key, value in super().versions().items() if key != "endpoints"}

    async def stop(self) -> None:
        await super().stop()
        if self._process is not None and self._end is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await asyncio.wait([self._end], timeout=self._server.stop_seconds + 2 * supervisor.KILL_SECONDS)

    @asynccontextmanager
    async def _alive(self) -> AsyncIterator[None]:
        """Run a call as long as the server lives. Raises EngineDied: it has ended, or does so meanwhile."""
        if self._death is not None:
            raise EngineDied(self._death)
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._calls.add(scope)
                try:
                    yield
                finally:
                    self._calls.discard(scope)
        except TimeoutError as error:
            if not scope.expired() or self._death is None:
                raise
            raise EngineDied(self._death) from error

    async def _note_end(self, process: Process) -> None:
        """Wait for the server's end, kill what it may have left, and end all calls."""
        code = await process.wait()
        with suppress(ProcessLookupError, PermissionError):  # a supervisor that was killed leaves its session
            os.killpg(process.pid, signal.SIGKILL)
        self._death = await asyncio.to_thread(self._reason, code)
        if self.on_death is not None:
            self.on_death(self._death)
        for scope in self._calls:
            scope.reschedule(time.monotonic())

    def _copy(self, output: int) -> None:
        """Copy the server's output to this process's own, which `batchyard logs` reads, and keep the end of it."""
        with open(output, "rb", buffering=0) as stream:
            while data := stream.read(TAIL_BYTES):
                self._tail = (self._tail + data)[-TAIL_BYTES:]
                with suppress(OSError):  # nobody reads it any more; the server goes on
                    os.write(1, data)

    def _reason(self, code: int) -> str:
        if self._fault is not None:
            return f"the server was ended, since {self._fault}"
        if code == supervisor.NO_PROGRAM:
            return f"the server's program {self._words[0]} cannot be started"
        self._copying.join(LAST_SECONDS)
        written = self._tail.decode(errors="replace").splitlines() if code >= 0 else []
        lines = [one_line(line) for line in written if line.strip()]
        last = [line for line in lines if ERROR.search(line)][-1:] or lines[-3:]
        said = last_exception(lines) or " | ".join(cut(line, MAX_LINE) for line in last)
        return f"the server {ending(code)}{f': {said}' if said else ''}"

    async def _unready(self) -> str | None:
        """Return why the server cannot be asked yet; None if it can. Raises EngineStartError: it never will."""
        model, words = self._model, re.split(r"""[\s='"]+""", self._server.command)
        try:
            await self._check_ready()
        except ProbeFailed as failure:
            return failure.reason
        try:
            names = await self._client.models(self._target)
        except ProbeFailed as failure:
            if model not in words:
                return f"GET /v1/models: {failure.reason}; engine_args.model can name the model as the command does"
            names = []
        if names is None:
            return None
        if not names and model not in words:
            return "GET /v1/models lists no model"
        named = [name for name in names if name in words]
        if model not in names and self._server.model is None and named:
            model = named[0]
        self._lists = model in names
        if not self._lists and (named or model not in words):
            raise EngineStartError(f"the server of another model: it lists {', '.join(names[:8])}, not {model}")
        self._model = model
        return None

    async def _check_ready(self) -> None:
        """Raises ProbeFailed: the path `ready` is not answered with 200."""
        status = await self._client.status(self._target, self._server.ready)
        if status != 200 and not (status in NO_SUCH_ROUTE and self._server.ready == READY):
            raise ProbeFailed(f"GET {self._server.ready} is answered with {described(status)}")

    async def _probe(self, endpoint: RemoteEndpoint) -> None:
        """Probe the server. One that answers, and says several times in a row that it is not ready, is ended."""
        try:
            await self._check_ready()
        except ProbeFailed as failure:
            now = time.monotonic()
            endpoint.probe_failed(now, failure.reason, responded=failure.responded, fatal=False)
            self._refusals = self._refusals + 1 if failure.responded else 0
            if self._refusals == FAILURES and self._process is not None and self._process.stdin is not None:
                self._fault = failure.reason
                self._process.stdin.close()
            return
        self._refusals = 0
        if self._lists:
            await super()._probe(endpoint)
        else:
            endpoint.probed(time.monotonic())
