"""What the output of an engine's processes says of their end: vLLM's lines, and those of Python."""

from __future__ import annotations

import re
from collections.abc import Sequence

from batchyard.failures.reasons import one_line

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
