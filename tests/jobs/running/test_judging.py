"""Rewards and gates in processes of their own: one that raises, hangs or crashes harms its own sample alone."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchyard.recipes import Check, Checked, Item, Score, Scored
from jobs.running.judging import Judges, Verdict, has_failed, is_quick
from recipes.registry import load

FILE = """
import os, time
from batchyard.recipes import Failure, gate, reward

@reward("odd")
def odd(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "hang":
        time.sleep(60)
    if solution_str == "crash":
        time.sleep(0.5)  # so that the pool knows that this process has the call
        os._exit(3)
    if solution_str == "raise":
        raise ValueError("no such answer")
    if solution_str == "nonsense":
        return "good"
    return {"score": float(solution_str == ground_truth), "pred": solution_str}

@gate("short")
def short(text, item, value):
    return Failure("length", f"{item.custom_id}: too long") if len(text) > value else None
"""


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judges]:
    folder: Path = tmp_path_factory.mktemp("recipes")
    (folder / "odd.py").write_text(FILE)
    pool = Judges(str(folder), processes=2, seconds=600.0)
    yield pool
    pool.close()


def outcomes(judges: Judges, calls: list[Score | Check]) -> list[Verdict]:
    done: queue.Queue[tuple[int, Verdict]] = queue.Queue()
    item = Item(0, "a", {})
    judges.submit([(call, item) for call in calls], lambda index, outcome: done.put((index, outcome)))
    return [outcome for _, outcome in sorted((done.get(timeout=360) for _ in calls), key=lambda pair: pair[0])]


def a_score(solution: str) -> Score:
    return Score("odd", "words", solution, "yes")


def test_a_reward_says_score_and_prediction(judges: Judges) -> None:
    yes, no = outcomes(judges, [a_score("yes"), a_score("no")])
    assert isinstance(yes, Scored) and isinstance(no, Scored)
    assert (yes.score, yes.pred, no.score) == (1.0, "yes", 0.0)


def test_a_gate_sees_text_item_and_value(judges: Judges) -> None:
    passed, stopped = outcomes(judges, [Check("short", "abc", 3), Check("short", "abcd", 3)])
    assert passed == Checked(True)
    assert stopped == Checked(False, "length", "a: too long")


@pytest.mark.long
def test_rewards_that_hang_crash_or_raise_harm_their_own_sample_alone(
    judges: Judges, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, lock = judges._processes, threading.Lock()
    submit = processes.submit

    def limited(function: Any, folder: str, calls: list[tuple[Score, Item]]) -> Any:
        """Give a second to calls of which one hangs. The others may wait longer for their processor."""
        with lock:
            seconds = 1.0 if any(call.solution_str == "hang" for call, _ in calls) else 600.0
            monkeypatch.setattr(processes, "_seconds", seconds)
            return submit(function, folder, calls)

    monkeypatch.setattr(processes, "submit", limited)
    solutions = ["yes", "hang", "yes", "crash", "raise", "nonsense", *["yes"] * 70]
    scores = outcomes(judges, [a_score(solution) for solution in solutions])
    assert all(isinstance(score, Scored) for score in scores)
    errors = [score.error for score in scores if isinstance(score, Scored)]
    assert [has_failed(score) for score in scores[:7]] == [False, True, False, True, True, True, False]
    assert errors[1] is not None and errors[1].startswith("ran longer than ")
    assert errors[3] == "its process ended with exit code 3"
    assert errors[4] == "ValueError: no such answer"
    assert errors[5] is not None and "a number as 'score'" in errors[5]
    assert [score.score for score in scores if isinstance(score, Scored)] == [1, 0, 1, 0, 0, 0] + [1] * 70


def test_a_gate_that_fails_does_not_let_its_text_pass(judges: Judges) -> None:
    (checked,) = outcomes(judges, [Check("short", "abc", "three")])
    assert isinstance(checked, Checked)
    assert (checked.passed, checked.category) == (False, "gate_error")


def test_only_built_in_gates_that_take_linear_time_run_without_a_process() -> None:
    gates = ("contains", "not-regex", "is-json", "levenshtein", "short")
    assert [is_quick(load(None), Check(gate, "text", "x")) for gate in gates] == [True, True, False, False, False]
