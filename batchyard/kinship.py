"""What Linux lets a process say of itself (prctl(2)): it ends with its parent, adopts orphans, has another name."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
# Loaded here: after a fork, in a copy of a process with threads, nothing may be loaded.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have this process get a signal when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, int(number))


def adopt_orphans() -> None:
    """Have this process become the parent of each descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def rename(name: str) -> None:
    """Have this process listed by this name, of which Linux keeps 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def _prctl(option: int, value: int | ctypes.Array[ctypes.c_char]) -> None:
    if _LIBC is not None:
        _LIBC.prctl(option, value, 0, 0, 0)
