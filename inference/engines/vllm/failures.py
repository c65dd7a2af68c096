"""The reason of a failure of vLLM."""

from __future__ import annotations

import re
from pathlib import Path

CAUSE = re.compile(r"\b[\w.]+(?:Error|Exception): .+$")


def own_logs() -> list[tuple[Path, int]]:
    """The files that this process writes its output to, with their present sizes."""
    logs = []
    for descriptor in (1, 2):
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.is_symlink() and path.resolve().is_file():
            logs.append((path.resolve(), path.stat().st_size))
    return logs


def reason(error: Exception, logs: list[tuple[Path, int]]) -> str:
    """Why vLLM failed, on the last line of `logs` that names a cause.

    vLLM's engine process writes its error to the log. Its client only learns that the engine failed.

    Args:
        logs: from `own_logs`, called before the start. Only later lines count.
    """
    summary = f"{type(error).__name__}: {error}"
    if "Engine" not in summary:
        return summary
    for path, size in logs:
        with path.open("rb") as log:
            log.seek(size)
            lines = log.read().decode(errors="replace").splitlines()
        causes = [match[0] for line in lines if (match := CAUSE.search(line)) and "Engine" not in match[0]]
        if causes:
            return causes[-1]
    return summary
