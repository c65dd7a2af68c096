"""Whether an engine's process is gone, as far as this machine can say."""

from __future__ import annotations

import subprocess
import sys

import psutil

from inference.residents import process


def test_a_process_that_runs_is_not_gone() -> None:
    assert not process.is_gone(process.identity())


def test_a_process_that_has_ended_is_gone_even_before_its_parent_has_heard_of_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process.identity() | {"pid": child.pid, "created_at": psutil.Process(child.pid).create_time()}
    assert not process.is_gone(identity)
    child.kill()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert process.is_gone(identity)
    child.communicate()
    assert process.is_gone(identity)


def test_another_process_with_the_same_number_is_not_it() -> None:
    older = process.identity()
    older["created_at"] -= process.CLOCK_SECONDS + 1
    assert process.is_gone(older)


def test_of_another_machine_or_container_nobody_can_say() -> None:
    assert not process.is_gone({"place": "elsewhere/1", "pid": 2**22 + 1, "created_at": 0.0})
    assert not process.is_gone({"place": "", "pid": 2**22 + 1, "created_at": 0.0})
