"""`batchyard` and `python -m batchyard.cli`: the start of the command line, which Ctrl-C may end at any moment."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

INTERRUPTED = 128 + signal.SIGINT
"""The exit code that shells give to a process that Ctrl-C ended."""


def main() -> None:
    """Run the command line. Ctrl-C ends it with INTERRUPTED and no traceback, also during imports.

    The first Ctrl-C in a command raises KeyboardInterrupt, so that the command can end what it has started. The next
    one ends the process at once.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell makes its background jobs ignore it
    if ours:
        signal.signal(signal.SIGINT, _leave)
        sys.unraisablehook = _leave_unraisable
    from batchyard.cli import main as commands

    try:
        if ours:
            signal.signal(signal.SIGINT, _interrupt)
        commands.main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        if ours:
            signal.signal(signal.SIGINT, _leave)


def _interrupt(*_: Any) -> None:
    signal.signal(signal.SIGINT, _leave)
    raise KeyboardInterrupt


def _leave(*_: Any) -> None:
    os._exit(INTERRUPTED)


def _leave_unraisable(unraisable: Any) -> None:
    """End the process where Python would print an interruption, met in a finalizer, and go on."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    main()
