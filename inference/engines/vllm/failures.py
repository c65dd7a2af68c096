"""The cause of a failure of vLLM: how its processes ended, and what the innermost wrote."""

import multiprocessing
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from batchyard.failures.endings import ending
from batchyard.failures.reasons import one_line
from inference.engines.process_output import ELSEWHERE, last_exception

END_SECONDS = 3.0
"""A process whose end its client has noticed ends, and has written why, within this time."""
WATCH_SECONDS = 0.1
TAIL_BYTES = 2**20
CORE = re.compile(r"'EngineCore\w*': (?P<code>-?\d+)")
"""A process of the engine that ended during the start, in the message of its client."""
WORKER = re.compile(r"Worker proc (?P<name>\S+) died unexpectedly \(exit code: (?P<code>-?\d+)\)")
ABORTED = re.compile(r"what\(\):.*|(?:malloc|free|realloc)\(\):? .*|double free.*|corrupted .*|Assertion .* failed.*")
"""What C and C++ libraries write before they abort."""
TERMINATED = -15


class Processes:
    """vLLM's processes, as the process sees them that starts them. Make it before the start."""

    def __init__(self) -> None:
        self._logs = _own_logs()
        self._before = set(multiprocessing.active_children())
        self._children: list[BaseProcess] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the processes that start within the block, to know their exit codes."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(WATCH_SECONDS):
                self._note()

        thread = threading.Thread(target=watch, daemon=True, name="processes")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._note()

    def _note(self) -> None:
        known = {*self._before, *self._children}
        self._children += [child for child in multiprocessing.active_children() if child not in known]

    def cause(self, error: Exception) -> str:
        """Return why the start failed, on one line."""
        summary = one_line(f"{type(error).__name__}: {error}")
        return self.death(summary) if ELSEWHERE.search(summary) else summary

    def death(self, summary: str) -> str:
        """Return why the engine died, on one line, by vLLM's `summary` too. It may wait for END_SECONDS."""
        deadline = time.monotonic() + END_SECONDS
        while (cause := self._known(summary)) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if cause is not None:
            return cause
        codes = self._codes(summary)
        if codes:
            return f"vLLM's engine process {ending(codes[0])}, and wrote no reason"
        return "vLLM's engine failed, and wrote no reason" if ELSEWHERE.search(summary) else summary

    def _known(self, summary: str) -> str | None:
        lines = list(self._lines())
        signals = [code for code in self._codes(summary) if code < 0 and code != TERMINATED]
        if signals:
            words = next((match[0] for line in reversed(lines) if (match := ABORTED.search(line))), "")
            abort = ending(signals[0]).endswith("SIGABRT") and words
            return f"vLLM's engine process {ending(signals[0])}" + (f": {one_line(words)}" if abort else "")
        for line in lines:
            if (match := WORKER.search(line)) and int(match["code"]) < 0:
                return f"vLLM's process {match['name']} {ending(int(match['code']))}"
        return last_exception(lines)

    def _codes(self, summary: str) -> list[int]:
        """Return the exit codes of the processes that have ended."""
        codes = [int(match["code"]) for match in CORE.finditer(summary)]
        return codes + [child.exitcode for child in self._children if child.exitcode is not None]

    def _lines(self) -> Iterator[str]:
        for path, size in self._logs:
            with path.open("rb") as log:
                end = log.seek(0, 2)
                log.seek(max(size if size <= end else 0, end - TAIL_BYTES))
                yield from log.read().decode(errors="replace").splitlines()


def _own_logs() -> list[tuple[Path, int]]:
    """Return the files that this process writes its output to, with their present sizes."""
    logs = []
    for descriptor in (1, 2):
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.is_symlink() and path.resolve().is_file():
            logs.append((path.resolve(), path.stat().st_size))
    return logs
