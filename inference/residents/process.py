"""The process of an engine: whether it is still there."""

import functools
import os
from pathlib import Path
from typing import Any

import psutil

CLOCK_SECONDS = 10.0
"""A process's start is told from the clock, which may have been set since by as much."""


@functools.cache
def place() -> str:
    """Return a name of this machine since its boot; empty where nothing says it.

    It differs between containers, which number their processes each for itself.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def identity() -> dict[str, Any]:
    """Return what identifies this process: `place`, `pid` and `created_at` (Unix seconds)."""
    return {"place": place(), "pid": os.getpid(), "created_at": psutil.Process().create_time()}


def is_gone(process: dict[str, Any]) -> bool:
    """True if the process of this `identity` was on this machine and is gone."""
    if not process.get("place") or process["place"] != place():
        return False
    try:
        alive = psutil.Process(process["pid"])
        other = abs(alive.create_time() - process["created_at"]) > CLOCK_SECONDS
        return other or alive.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
