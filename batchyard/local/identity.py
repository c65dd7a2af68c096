"""What others see of a copy of a process: its name, its command line and its environment.

Linux shows the memory that a program's command line and environment were put into at its start (proc_pid_environ(5)).
A copy has that of the original until it overwrites it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

from batchyard import kinship

_FIELDS = slice(48 - 3, 52 - 3)
"""Of /proc/PID/stat after the name, its second field: where command line and environment begin and end."""


def take(name: str, title: str, environment: Mapping[str, str]) -> None:
    """Let others see this process by another name, title and environment.

    The title is cut to the bytes that there are, and so is the environment, after a whole variable. No variable may be
    in use that this process was started with.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, arguments_end, variables, variables_end = map(int, fields[_FIELDS])
    _write(arguments, arguments_end - arguments, title.encode())
    room = variables_end - variables
    block = b"".join(f"{variable}={value}\0".encode() for variable, value in environment.items())
    _write(variables, room, block if len(block) <= room else block[: block.rindex(b"\0", 0, room) + 1])
    kinship.rename(name)


def _write(address: int, room: int, content: bytes) -> None:
    ctypes.memmove(address, content[:room].ljust(room, b"\0"), room)
