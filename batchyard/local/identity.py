"""What others see of a copy of a process: its tag, its command line and its name.

Linux shows the memory that a program's command line and environment were put into at its start (proc_pid_environ(5)).
A copy has that of the original until it overwrites it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from batchyard import kinship

_ARGUMENTS, _ARGUMENTS_END, _ENVIRONMENT = 48, 49, 50
"""Fields of /proc/PID/stat, counted from 1: where the command line begins and ends, and the environment begins."""


def take(name: str, title: str, variable: str, value: str) -> None:
    """Let others see this process by another name and title, and a variable of its environment with another value.

    Each is cut to the bytes that there are.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end, environment = (int(fields[number - 3]) for number in (_ARGUMENTS, _ARGUMENTS_END, _ENVIRONMENT))
    _write(start, end - start, title)
    variables = Path("/proc/self/environ").read_bytes()
    offset = variables.index(f"{variable}=".encode()) + len(variable) + 1
    _write(environment + offset, variables.index(b"\0", offset) - offset, value)
    kinship.rename(name)


def _write(address: int, room: int, text: str) -> None:
    ctypes.memmove(address, text.encode()[:room].ljust(room, b"\0"), room)
