"""The campaign of kills over a job would notice if they changed something."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.jobs import Kill, Run


def a_run(**calls: int) -> Run:
    """A run of one item, each of whose requests was asked once, but for these."""
    result = Run("run1", 1, results=b"a\nb\n")
    result.calls = Counter(dict.fromkeys(result.requests, 1) | {f"run1-0.{name}": n for name, n in calls.items()})
    result.calls = +result.calls
    return result


def test_the_audit_finds_nothing_wrong_in_what_was_asked_again_after_a_kill() -> None:
    result = a_run(**{"draft.0": 3})
    result.kills = [Kill("worker", 1), Kill("engine", 1)]
    result.audit(b"a\nb\n")
    assert (result.wrong, result.repeated) == ([], 2)


@pytest.mark.parametrize(
    ("calls", "undisturbed", "message"),
    [
        ({"judge.0": 0}, b"a\nb\n", "1 requests were never asked: run1-0.judge.0"),
        ({"judge.1": 1}, b"a\nb\n", "1 requests were made up: run1-0.judge.1"),
        ({"judge.0": 3}, b"a\nb\n", "2 requests were asked again, 1 in flight at the kills"),
        ({}, b"a\nc\n", "line 2 of the results is b, undisturbed c"),
        ({}, b"a\nb\nc\n", "the results have 2 lines and 4 bytes, undisturbed 3 and 6"),
    ],
)
def test_the_audit_notices(calls: dict[str, int], undisturbed: bytes, message: str) -> None:
    result = a_run(**calls)
    result.kills = [Kill("worker", 1)]
    result.audit(undisturbed)
    assert result.wrong == [message]
