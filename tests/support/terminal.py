"""The command line as people use it, in the tests' own process: a new one imports for a second."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from batchyard.cli import main

Result = subprocess.CompletedProcess[str]


def _inherited() -> dict[str, str]:
    """The environment without the settings of the tests' own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}


def batchyard(*arguments: str | Path, folder: Path, stdin: str = "", **environment: str) -> Result:
    """Run a command in `folder` with this on standard input; no setting of the tests' own environment reaches it."""
    command = ["batchyard", *map(str, arguments)]
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        for name in os.environ.keys() - _inherited().keys():
            patched.delenv(name)
        for name, value in environment.items():
            patched.setenv(name, value)
        patched.setattr(sys, "argv", command)
        patched.setattr(sys, "stdin", io.StringIO(stdin))
        patched.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            main.main()
    printed = []
    for stream in streams:
        stream.flush()
        printed.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Result(command, int(ended.value.code or 0), *printed)


def separate_process(*arguments: str | Path, folder: Path, **environment: str) -> Result:
    """Run a command in `folder`, as a process of its own: it starts a stack, or is killed."""
    command = [str(Path(sys.executable).parent / "batchyard"), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=folder, env=_inherited() | environment
    )
