"""Fixtures of the terminal's tests: its commands against the shared stack, and a file of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import Result, batchyard


@pytest.fixture
def terminal(stack: RunningStack, tmp_path: Path) -> Any:
    """Runs a command against the shared stack."""
    return terminal_of(stack, tmp_path)


def terminal_of(stack: RunningStack, folder: Path) -> Any:
    """Return a function that runs commands in a folder against a stack."""

    def run(*arguments: str | Path, stdin: str = "") -> Result:
        return batchyard(*arguments, folder=folder, stdin=stdin, **address(stack))

    return run


def address(stack: RunningStack) -> dict[str, str]:
    """Return the settings by which a command finds a stack."""
    return {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}


@pytest.fixture
def mine(stack: RunningStack, tmp_path: Path) -> RunningStack:
    """The shared stack as a project of the test's own sees it: nothing that other tests have left is there."""
    return stack.in_project(tmp_path.name)


@pytest.fixture
def held(stack: RunningStack, mine: RunningStack, tmp_path: Path) -> Iterator[RunningStack]:
    """That project, whose batches wait until `stack.limit_segments(tmp_path.name, None)`."""
    stack.limit_segments(tmp_path.name, 0)
    yield mine
    stack.limit_segments(tmp_path.name, None)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    lines = [
        a_chat(f"r{number}", f"question {number}", metadata={"task": "sum", "expected": "no"}) for number in range(20)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file
