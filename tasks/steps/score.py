"""Step `score`: the share of correct answers."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Literal

from tasks.steps.step import Results, Step, StepOptions

NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class ScoreOptions(StepOptions):
    """The way to compare.

    Attributes:
        method: exact: the same text, stripped. numeric: the last numbers have the same value. regex: the expected text
            is a regular expression that matches somewhere in the answer.
    """

    step: Literal["score"]
    method: Literal["exact", "numeric", "regex"] = "exact"


def last_number(text: str) -> Decimal | None:
    """Return the value of the last number in a text, with or without thousands separators; None without a number."""
    numbers = NUMBER.findall(text)
    try:
        return Decimal(numbers[-1].replace(",", "")) if numbers else None
    except InvalidOperation:
        return None


def matches(method: str, answer: str, expected: str) -> bool:
    """Return True if the answer is as expected. Raises re.error if the expected text is no regular expression."""
    if method == "numeric":
        value = last_number(expected)
        return value is not None and last_number(answer) == value
    if method == "regex":
        return re.search(expected, answer) is not None
    return answer.strip() == expected.strip()


def _score(method: str, answer: str | None, expected: str) -> tuple[bool, str | None]:
    if answer is None:
        return False, "no answer"
    try:
        return matches(method, answer, expected), None
    except re.error as error:
        return False, f"expected is no regular expression: {error}"


def score(results: Results, options: ScoreOptions) -> None:
    """Write `scores.jsonl`, with a line per request that has an expected answer, and `score-summary.json`.

    A request without an answer counts as wrong. Requests without an expected answer have a count of their own.
    """
    tasks: dict[str, dict[str, int]] = {}
    unscored = 0
    with results.create() as scores:
        for row in results.rows():
            metadata = row.body.get("metadata")
            if not isinstance(metadata, dict) or not isinstance(expected := metadata.get("expected"), str):
                unscored += 1
                continue
            task = str(metadata.get("task", "all"))
            correct, error = _score(options.method, row.text, expected)
            counts = tasks.setdefault(task, {"total": 0, "correct": 0})
            counts["total"] += 1
            counts["correct"] += correct
            entry = {
                "custom_id": row.custom_id,
                "task": task,
                "correct": correct,
                "expected": expected,
                "answer": row.text,
            }
            scores.write(json.dumps(entry | ({"error": error} if error else {}), ensure_ascii=False).encode() + b"\n")
    total = sum(counts["total"] for counts in tasks.values())
    correct_total = sum(counts["correct"] for counts in tasks.values())
    summary = {
        "method": options.method,
        "total": total,
        "correct": correct_total,
        "accuracy": correct_total / total if total else None,
        "without_expected": unscored,
        "tasks": {
            task: {**counts, "accuracy": counts["correct"] / counts["total"]} for task, counts in sorted(tasks.items())
        },
    }
    with results.create() as file:
        file.write(json.dumps(summary, indent=2, ensure_ascii=False).encode() + b"\n")
    results.add("scores.jsonl", scores.sha256, scores.size, total)
    results.add("score-summary.json", file.sha256, file.size)


STEP = Step(
    "score",
    "compares each answer with body.metadata.expected, by body.metadata.task if that is given.",
    ScoreOptions,
    score,
)
