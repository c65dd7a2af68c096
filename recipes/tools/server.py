"""A process that has imported the tools, and forks for each call: `python -m recipes.tools.server FOLDER`.

It reads a call as a line of JSON from standard input (`id`, `tool`, `arguments`, `key`) and writes its outcome as one
to standard output, in any order. It has one thread, as it forks. A call has a session of its own, and all processes
that it leaves are killed with it: Linux gives this process those that have left the session, too.
"""

import contextlib
import importlib
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil

from batchyard import json_lines, kinship
from batchyard.recipes import Tool
from recipes import mcp_servers, registry
from recipes.tools import child

POLL_SECONDS = 0.2
"""How often time, memory and number of processes of each call are looked at."""
PROCESSES = 64
"""Most processes of one call."""
PRINTED_BYTES = 1024 * 1024
"""Most that one call may print."""
TAIL_BYTES = 400
"""The end of what a call has printed, for its error."""
OVERHEAD_BYTES = 1024
"""What the outcome of a call has beside the tool's value."""


@dataclass(eq=False)
class RunningCall:
    """A call under way."""

    id: Any
    tool: Tool
    pid: int  # of its first process, which leads its session
    folder: Path
    began_at: float
    descriptors: dict[int, bytearray]
    # What was read of its outcome, and of what it printed
    result: bytearray
    printed: bytearray
    printed_bytes: int = 0
    failure: tuple[str, str] | None = None  # why it was killed: code and message
    others: set[int] = field(default_factory=set)


class ToolServer:
    """Runs the calls that come in."""

    def __init__(self, tools: Mapping[str, Tool], requests: int, outcomes: int) -> None:
        self._tools = tools
        self._requests, self._outcomes = requests, outcomes
        self._buffer = bytearray()
        self._calls: dict[int, RunningCall] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._woken, wakes = os.pipe()  # by the end of a child
        for descriptor in (self._woken, wakes):
            os.set_blocking(descriptor, False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._root = Path(tempfile.mkdtemp(prefix="tools-"))
        self._number = 0
        self._has_children = False
        kinship.adopt_orphans()

    def serve(self) -> None:
        """Run calls until standard input ends; then kill what is under way."""
        looked_at = time.monotonic()
        try:
            while self._read():
                self._has_children = self._reap()
                if time.monotonic() - looked_at >= POLL_SECONDS:
                    looked_at = time.monotonic()
                    self._look()
        finally:
            for call in self._calls.values():
                self._kill(call)
            shutil.rmtree(self._root, ignore_errors=True)

    def _read(self) -> bool:
        """Read what is there, or comes within POLL_SECONDS. False if standard input has ended."""
        for key, _ in self._selector.select(POLL_SECONDS if self._calls or self._has_children else None):
            content = os.read(key.fd, 1 << 16)
            if key.fd == self._requests:
                if not content:
                    return False
                self._buffer += content
                *lines, self._buffer = self._buffer.split(b"\n")
                for line in lines:
                    self._begin(json_lines.loads(line))
            elif content and key.data is not None:
                self._take(key.data, key.fd, content)
            elif not content:
                self._selector.unregister(key.fd)
        return True

    def _begin(self, request: dict[str, Any]) -> None:
        tool = self._tools.get(request["tool"])
        if tool is None:
            error = {"code": "tool_not_found", "message": f"No tool is named {request['tool']!r}."}
            self._answer({"id": request["id"], "ok": False, "error": error})
            return
        self._number += 1
        folder = self._root / str(self._number)
        folder.mkdir()
        (result, result_end), (printed, printed_end) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            others = (descriptor for call in self._calls.values() for descriptor in call.descriptors)
            for descriptor in (result, printed, self._outcomes, *others):
                os.close(descriptor)
            child.run(tool, request["arguments"], request["key"], folder, result_end, printed_end)
        os.close(result_end)
        os.close(printed_end)
        outcome, text = bytearray(), bytearray()
        descriptors = {result: outcome, printed: text}
        call = RunningCall(request["id"], tool, pid, folder, time.monotonic(), descriptors, outcome, text)
        self._calls[pid] = call
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, call)

    def _take(self, call: RunningCall, descriptor: int, content: bytes) -> None:
        """Keep what has come from a call. It is killed if that is too much."""
        kept = call.descriptors[descriptor]
        kept += content
        if kept is call.printed:
            call.printed_bytes += len(content)
            del kept[:-TAIL_BYTES]
            if call.printed_bytes > PRINTED_BYTES:
                self._fail(call, "output_too_large", f"It printed more than {PRINTED_BYTES} bytes.")
        elif len(kept) > call.tool.output_bytes + OVERHEAD_BYTES:
            self._fail(call, "output_too_large", f"Its result is larger than {call.tool.output_bytes} bytes.")

    def _fail(self, call: RunningCall, code: str, message: str) -> None:
        call.failure = call.failure or (code, message)
        self._kill(call)

    def _kill(self, call: RunningCall) -> None:
        """Kill a session at once, which cannot fork in between, and what has left it."""
        with contextlib.suppress(OSError):
            os.killpg(call.pid, signal.SIGKILL)
        for pid in call.others | {call.pid}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> bool:
        """Answer the calls whose first process has ended. Return whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            call = self._calls.pop(pid, None)
            if call is not None:
                self._end(call, os.waitstatus_to_exitcode(status))

    def _end(self, call: RunningCall, exit_code: int) -> None:
        self._kill(call)
        for descriptor in call.descriptors:
            with contextlib.suppress(OSError):
                while call.failure is None and (content := os.read(descriptor, 1 << 16)):
                    self._take(call, descriptor, content)
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
            os.close(descriptor)
        shutil.rmtree(call.folder, ignore_errors=True)
        self._answer(
            {"id": call.id, "seconds": round(time.monotonic() - call.began_at, 3), **_outcome(call, exit_code)}
        )

    def _look(self) -> None:
        """Kill calls that are over their limits, and processes that calls have left."""
        now = time.monotonic()
        for running in list(self._calls.values()):
            if now - running.began_at > running.tool.seconds:
                self._fail(running, "tool_timeout", f"It ran longer than {running.tool.seconds:g} seconds.")
        for call, processes in self._descendants():
            if call is None:
                for process in processes:
                    with contextlib.suppress(psutil.Error):
                        process.kill()
                continue
            call.others = {process.pid for process in processes}
            if len(processes) > PROCESSES:
                self._fail(call, "too_many_processes", f"It had more than {PROCESSES} processes.")
            elif len(processes) > 1 and _exceeds(processes, call.tool.memory_mb * child.MEBIBYTE):
                self._fail(call, "tool_error", f"Its processes took more than {call.tool.memory_mb} MiB of memory.")

    def _descendants(self) -> Iterator[tuple[RunningCall | None, list[psutil.Process]]]:
        """Yield each call with its processes, and None with those whose call has ended or was left by them."""
        by_call: dict[int, list[psutil.Process]] = defaultdict(list)
        roots: dict[int, int] = {}
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process().children(recursive=True):  # parents come before their children
                with contextlib.suppress(psutil.Error):
                    parent = process.ppid()
                    root = process.pid if parent == os.getpid() else roots.get(parent, parent)
                    roots[process.pid] = root
                    if process.status() != psutil.STATUS_ZOMBIE:
                        by_call[root].append(process)
        for root, processes in by_call.items():
            yield self._calls.get(root), processes

    def _answer(self, outcome: dict[str, Any]) -> None:
        child.write(self._outcomes, json_lines.dumps(outcome) + b"\n")


def _outcome(call: RunningCall, exit_code: int) -> dict[str, Any]:
    if call.failure is not None:
        code, message = call.failure
    else:
        with contextlib.suppress(orjson.JSONDecodeError):
            return dict(json_lines.loads(call.result))
        code, message = "tool_crashed", f"Its process ended with exit code {exit_code}."
    printed = call.printed.decode(errors="replace").strip()
    return {"ok": False, "error": {"code": code, "message": f"{message} It printed: {printed}" if printed else message}}


def _exceeds(processes: list[psutil.Process], limit: int) -> bool:
    """Return whether these processes have more memory than `limit` bytes that they share with no other process."""
    total = private = 0
    with contextlib.suppress(psutil.Error):
        total = sum(process.memory_info().rss for process in processes)
        if total > limit:  # forked processes share most of it, which takes longer to tell
            private = sum(process.memory_full_info().uss for process in processes)
    return private > limit


def main(folder: str) -> None:
    """Serve calls on standard input and output. Nothing else may write to that output."""
    outcomes = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the end of standard input ends this
    tools = registry.load(folder or None).tools
    if any(isinstance(tool.function, mcp_servers.RemoteTool) for tool in tools.values()):
        importlib.import_module(mcp_servers.PACKAGE)  # once for all calls: it takes a second
    ToolServer(tools, 0, outcomes).serve()


if __name__ == "__main__":
    main(sys.argv[1])
