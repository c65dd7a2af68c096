"""`batchyard` and `python -m batchyard.cli`: the start of the command line, which Ctrl-C may end at any moment."""

import io
import os
import signal
import sys
from pathlib import Path
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
    # Streams that the parent has closed are replaced, and what the locale lacks is written as escapes.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
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
