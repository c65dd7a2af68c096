"""An answer that cannot be used says why, in the engine's words where there are any."""

from __future__ import annotations

import pytest

from batchyard.recipes import Answer, Failure
from recipes.answers import failure_of


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (Answer(ok=True, text="yes"), None),
        (Answer(ok=True, text=" \n"), Failure("empty_answer", "The answer has no text.")),
        (Answer(ok=False, error={"code": "late", "message": "Too late."}), Failure("late", "Too late.")),
        (Answer(ok=False, error={"code": None}), Failure("no_answer", "There is no answer.")),
        (Answer(ok=False), Failure("no_answer", "There is no answer.")),
    ],
)
def test_why_an_answer_cannot_be_used(answer: Answer, failure: Failure | None) -> None:
    assert failure_of(answer) == failure
