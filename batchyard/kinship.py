"""What Linux lets a process say of itself: it ends with its parent, adopts orphans (prctl(2)), has another identity.

A process's command line and environment are shown as the memory that they were put into at its start
(proc_pid_environ(5)). A copy of a process has those of the original until it overwrites them.
"""

import ctypes
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
# Loaded here: after a fork, in a copy of a process with threads, nothing may be loaded.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

_FIELDS = slice(48 - 3, 52 - 3)
"""Of /proc/PID/stat after the name, its second field: where command line and environment begin and end."""


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have this process get a signal when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, int(number))


def adopt_orphans() -> None:
    """Have this process become the parent of each descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def take_identity(name: str, title: str, environment: Mapping[str, str]) -> None:
    """Let others see this process by another name, of which Linux keeps 15 bytes, title and environment.

    The title is cut to the bytes that there are, and so is the environment, after a whole variable. No variable may be
    in use that this process was started with.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, arguments_end, variables, variables_end = map(int, fields[_FIELDS])
    _write(arguments, arguments_end - arguments, title.encode())
    room = variables_end - variables
    block = b"".join(f"{variable}={value}\0".encode() for variable, value in environment.items())
    _write(variables, room, block if len(block) <= room else block[: block.rindex(b"\0", 0, room) + 1])
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def _write(address: int, room: int, content: bytes) -> None:
    ctypes.memmove(address, content[:room].ljust(room, b"\0"), room)


def _prctl(option: int, value: int | ctypes.Array[ctypes.c_char]) -> None:
    if _LIBC is not None:
        _LIBC.prctl(option, value, 0, 0, 0)
