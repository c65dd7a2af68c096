"""The server of a command: the local stack's key is found, and never leaves this machine."""

from __future__ import annotations

from pathlib import Path

from tests.support.stacks import RunningStack
from tests.support.terminal import batchyard


def test_the_local_stack_and_its_key_are_found_through_its_data_folder(stack: RunningStack, tmp_path: Path) -> None:
    result = batchyard("models", "--json", "--data", stack.data, folder=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_admin_key_is_never_sent_to_another_machine(stack: RunningStack, tmp_path: Path) -> None:
    result = batchyard("list", "--data", stack.data, folder=tmp_path, BATCHYARD_URL="http://192.0.2.1:8000")
    assert result.returncode == 2
    assert "no API key for http://192.0.2.1:8000" in result.stderr
