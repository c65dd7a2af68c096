"""What a process and those below it have written: its lines since a moment, and the exception that they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from batchyard.failures.reasons import one_line

TAIL_BYTES = 2**20
ELSEWHERE = re.compile(
    r"see (?:the )?(?:stack trace|root cause)|stack trace above|root cause above|EngineDeadError|Executor failed"
    r"|^RuntimeError: cancelled$",
    re.IGNORECASE,
)
"""What vLLM says of an error that another of its processes has written."""
LINE = re.compile(
    r"^(?:\((?P<process>\w+)[^)]*\) )?(?:(?:ERROR|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]*\] )?"
    r"(?P<cause>(?:[A-Za-z_]\w*\.)*(?P<kind>[A-Z]\w*(?:Error|Exception|Exit))(?:: .+|:?\s*)$)"
)
"""The last line of a traceback, in vLLM's log or as Python itself writes it."""
DEPTHS = (("Worker", 2), ("VllmWorker", 2), ("EngineCore", 1))
"""Workers run inside the engine's process, and that inside its client's."""


class ProcessOutput:
    """The files that this process writes its output to, as Ray's workers do, from the moment this is made."""

    def __init__(self, *descriptors: int) -> None:
        """`descriptors`: 1, standard output, and 2, standard error."""
        self._files = [(path, path.stat().st_size) for path in map(_own_file, descriptors) if path.is_file()]

    def lines(self) -> list[str]:
        """Return the last lines since then."""
        lines = []
        for path, size in self._files:
            with path.open("rb") as file:
                end = file.seek(0, 2)
                file.seek(max(size if size <= end else 0, end - TAIL_BYTES))
                lines += file.read().decode(errors="replace").splitlines()
        return lines


def last_exception(lines: Sequence[str]) -> str | None:
    """Return the last exception of the innermost process that has written one."""
    written: list[tuple[int, str]] = []
    for line in lines:
        match = LINE.search(line)
        if match is None or ELSEWHERE.search(match["cause"]):
            continue
        process = match["process"] or ""
        depth = next((depth for name, depth in DEPTHS if process.startswith(name)), 0)
        _, _, message = match["cause"].partition(": ")
        written.append((depth, one_line(f"{match['kind']}: {message}" if message else match["kind"])))
    deepest = max((depth for depth, _ in written), default=0)
    return next((text for depth, text in reversed(written) if depth == deepest), None)


def _own_file(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")
