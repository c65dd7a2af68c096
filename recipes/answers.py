"""Whether an answer can be used."""

from __future__ import annotations

from batchyard.recipes import Answer, Failure


def failure_of(answer: Answer) -> Failure | None:
    """Return why there is no answer, None if there is one. A text of blanks is none."""
    if answer.ok:
        return None if answer.text.strip() else Failure("empty_answer", "The answer has no text.")
    error = answer.error or {}
    return Failure(str(error.get("code") or "no_answer"), str(error.get("message") or "There is no answer."))
