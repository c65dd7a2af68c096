"""The watchdog: which steps hang, and where."""

from __future__ import annotations

from jobs.running import watchdog


def test_a_step_hangs_when_the_watchdog_sees_it_longer_than_it_may_take() -> None:
    patience = watchdog.Patience(checks=3)
    slow, quick = (watchdog.ProgramStep(number, 0, 0, 1, 0, 1, 0, "job") for number in (1, 2))
    assert [patience.hung([slow]) for _ in range(3)] == [[], [], []]
    assert patience.hung([quick]) == []
    assert [patience.hung([slow, quick]) for _ in range(2)] == [[], []]
    assert patience.hung([slow, quick]) == [quick]
    assert patience.hung([slow, quick]) == [slow, quick]


def test_the_place_of_a_hanging_recipe_is_that_of_its_own_thread() -> None:
    dump = """Thread 0x00007f0000000001 (most recent call first):
  File "/lib/re/__init__.py", line 166 in match
  File "/recipes/own.py", line 12 in helper
  File "/recipes/own.py", line 34 in own
  File "/app/batchyard/recipes/program.py", line 112 in _advance
  File "/app/batchyard/recipes/program.py", line 90 in send

Current thread 0x00007f0000000002 (most recent call first):
  File "/app/tasks/app.py", line 1 in wait
"""
    assert watchdog.place(dump, 0x7F0000000001) == "own.py, line 34"
    assert watchdog.place(dump, 0x7F0000000002) is None
    assert watchdog.place("", 1) is None
