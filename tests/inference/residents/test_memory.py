"""The memory of an engine: what a reason says of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from batchyard.failures.causes import NO_KILL
from inference.residents import memory
from inference.residents.memory import GIB, Memory


@pytest.fixture
def vmstat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's counters: it has ended three processes so far."""
    file = tmp_path / "vmstat"
    file.write_text("pgfault 7\noom_kill 3\n")
    monkeypatch.setattr(memory, "VMSTAT", file)
    return file


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of the processes at each look, the next one first."""
    values = [2 * GIB, 3 * GIB, GIB]
    monkeypatch.setattr(memory, "_resident", lambda: values.pop(0))
    monkeypatch.setattr(memory, "_handles", list)
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.0)
    return values


def test_before_the_first_look_there_is_nothing_to_say(vmstat: Path) -> None:
    assert Memory().phrase() == ""


def test_a_reason_names_what_there_was_and_whether_the_kernel_ended_a_process(
    vmstat: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now[0]))
    seen = Memory()
    seen.look()
    now[0] += 3
    assert seen.phrase().startswith("3 s before, its processes had 2.0 GiB, and ")
    assert seen.phrase().endswith(f"GiB were free; {NO_KILL}")
    vmstat.write_text("oom_kill 4\n")
    assert seen.phrase().endswith("; the kernel ended 1 for want of memory")


def test_where_the_kernel_does_not_count_nothing_is_said_of_it(vmstat: Path, sizes: list[int]) -> None:
    vmstat.unlink()
    seen = Memory()
    seen.look()
    assert seen.phrase().endswith("GiB were free")


def test_the_most_is_kept_and_after_the_end_nobody_looks(vmstat: Path, sizes: list[int]) -> None:
    seen = Memory()
    seen.look()
    seen.look()
    assert (seen.now, seen.most, seen.most_of_gpus) == (3 * GIB, 3 * GIB, None)
    seen.freeze()
    seen.look()
    assert seen.now == 3 * GIB and len(sizes) == 1


def test_who_looks_again_at_once_sees_the_same(vmstat: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LOOK_SECONDS", 60.0)
    seen = Memory()
    seen.look()
    seen.look()
    assert seen.now == 2 * GIB and len(sizes) == 2
