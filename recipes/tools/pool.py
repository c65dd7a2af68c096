"""The calls of tools of this process: a server process runs them, and is started again when it has ended."""

import contextlib
import logging
import queue
import shlex
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson

from batchyard import json_lines
from batchyard.recipes import Call, Called

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often a call is given to a server, if servers end while they have it and the call may be made again."""
INTERRUPTED: Mapping[str, str] = {
    "code": "interrupted",
    "message": "The call had begun when its process was lost. The tool says `once`, so it was not made again.",
}
_LOST: Mapping[str, str] = {"code": "tool_crashed", "message": f"The process of the tools ended {ATTEMPTS} times."}


@dataclass
class _Entry:
    """A call that has no outcome yet, or one that nobody has recorded."""

    owner: str
    call: Call
    is_retriable: bool
    done: Callable[[Called], None]
    attempts: int = 0
    outcome: Called | None = None


@dataclass
class ToolCalls:
    """Calls by their idempotency keys. The owners (jobs) take turns, so that none waits for all calls of another.

    Args:
        folder: the deployment's recipes and tools; empty for none.
        processes: calls at once.
        sandbox: a command line that the server's is appended to; empty for none.
    """

    folder: str
    processes: int
    sandbox: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _calls: dict[str, _Entry] = field(default_factory=dict)
    _waiting: OrderedDict[str, deque[str]] = field(default_factory=OrderedDict)
    _sent: set[str] = field(default_factory=set)
    _server: subprocess.Popen[bytes] | None = None
    _requests: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    _is_closed: bool = False

    def __contains__(self, key: str) -> bool:
        """True for a call that is under way here, or has an outcome that was not forgotten."""
        with self._lock:
            return key in self._calls

    def submit(self, owner: str, key: str, call: Call, *, is_retriable: bool, done: Callable[[Called], None]) -> None:
        """Make a call, unless it is under way or has an outcome. `done` gets that, in this or another thread."""
        with self._lock:
            entry = self._calls.get(key)
            if entry is None:
                self._calls[key] = _Entry(owner, call, is_retriable, done)
                self._waiting.setdefault(owner, deque()).append(key)
                self._send()
                return
            entry.done, outcome = done, entry.outcome
        if outcome is not None:
            done(outcome)

    def forget(self, key: str) -> None:
        """Forget a call whose outcome is recorded, or not wanted any more. One that waits is not made."""
        with self._lock:
            entry = self._calls.pop(key, None)
            waiting = None if entry is None else self._waiting.get(entry.owner)
            if entry is not None and waiting is not None and key in waiting:
                waiting.remove(key)
                if not waiting:
                    del self._waiting[entry.owner]

    def forget_all(self, owner: str) -> None:
        with self._lock:
            self._waiting.pop(owner, None)
            for key in [key for key, entry in self._calls.items() if entry.owner == owner]:
                self._calls.pop(key)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            server = self._server
        if server is not None:
            self._requests.put(None)
            server.wait()

    def _send(self) -> None:
        """Give calls to the server while it has places: of each owner one, in turn."""
        while len(self._sent) < self.processes and self._waiting and not self._is_closed:
            owner, keys = self._waiting.popitem(last=False)
            key = keys.popleft()
            if keys:
                self._waiting[owner] = keys
            entry = self._calls[key]
            entry.attempts += 1
            self._sent.add(key)
            request = {"id": key, "tool": entry.call.tool, "arguments": entry.call.arguments, "key": key}
            if self._server is None:
                command = [*shlex.split(self.sandbox), sys.executable, "-m", "recipes.tools.server", self.folder]
                try:
                    self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                except OSError as error:
                    self._sent.discard(key)
                    message = f"The process of the tools does not start: {error}."
                    self._end(entry, Called.failed("tool_crashed", message))
                    continue
                self._requests = queue.SimpleQueue()
                for work in (self._read, self._write):
                    arguments = (self._server, self._requests)
                    threading.Thread(target=work, args=arguments, name="tools", daemon=True).start()
            self._requests.put(json_lines.dumps(request) + b"\n")

    def _write(self, server: subprocess.Popen[bytes], requests: queue.SimpleQueue[bytes | None]) -> None:
        """Write requests, in a thread: the server reads none while nobody reads its outcomes."""
        assert server.stdin is not None
        with contextlib.suppress(OSError), server.stdin:  # the other thread sees the end of the server
            while (request := requests.get()) is not None:
                server.stdin.write(request)
                server.stdin.flush()

    def _read(self, server: subprocess.Popen[bytes], requests: queue.SimpleQueue[bytes | None]) -> None:
        """Take outcomes until the server ends; then make the calls that it had again, or end them."""
        assert server.stdout is not None
        for line in server.stdout:
            try:
                outcome = json_lines.loads(line)
                key = outcome.pop("id")
            except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):  # what a sandbox says
                log.warning("the process of the tools wrote something else than outcomes")
                continue
            with self._lock:
                self._sent.discard(key)
                entry = self._calls.get(key)
                self._send()
            if entry is not None:
                self._end(entry, Called(**outcome))
        exit_code = server.wait()
        requests.put(None)
        with self._lock:
            self._server = None
            lost = [(key, self._calls.get(key)) for key in self._sent]
            self._sent.clear()
            if self._is_closed:
                return
            log.warning("the process of the tools ended", extra={"exit_code": exit_code, "calls": len(lost)})
            ended = []
            for key, entry in lost:
                if entry is None:
                    continue
                if entry.is_retriable and entry.attempts < ATTEMPTS:
                    self._waiting.setdefault(entry.owner, deque()).append(key)
                else:
                    ended.append(entry)
            self._send()
        for entry in ended:
            self._end(entry, Called(False, error=dict(_LOST if entry.is_retriable else INTERRUPTED)))

    def _end(self, entry: _Entry, outcome: Called) -> None:
        with self._lock:
            entry.outcome, done = outcome, entry.done
        done(outcome)
