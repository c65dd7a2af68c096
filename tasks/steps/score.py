"""Step `score`: the share of correct answers."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from batchyard import json_lines
from batchyard.comparing.patterns import InvalidPattern, compiled
from batchyard.comparing.values import matches
from store.formats import scores as score_lines
from tasks.steps.step import Results, Step, StepOptions

Method = Literal["exact", "numeric", "regex"]


class ScoreOptions(StepOptions):
    """The way to compare.

    `method`: exact: the same text, stripped. numeric: the last numbers have the same value; `expected` may be a number.
    regex: the expected text is a regular expression (RE2) that matches somewhere in the answer.
    """

    step: Literal["score"]
    method: Method = "exact"


def _expected(body: Mapping[str, Any]) -> str | None:
    metadata = body.get("metadata")
    expected = metadata.get("expected") if isinstance(metadata, dict) else None
    return expected if expected is None or isinstance(expected, str) else json.dumps(expected, ensure_ascii=False)


def is_correct(body: Mapping[str, Any], text: str | None, method: Method) -> bool | None:
    """Return whether a text is the answer that a request expects; None if it expects none."""
    expected = _expected(body)
    return None if expected is None else text is not None and matches(method, text, expected)


def refusal(body: Mapping[str, Any], options: ScoreOptions) -> tuple[str, str] | None:
    """Return param and reason if the expected text is no regular expression, else None."""
    expected = _expected(body)
    if options.method != "regex" or expected is None:
        return None
    try:
        compiled(expected)
    except InvalidPattern as error:
        return "body.metadata.expected", (
            f"'expected' is no regular expression of RE2: {error}. Step score, method regex, takes RE2's syntax, "
            "which has no back-references and no look-around."
        )
    return None


def score(results: Results, options: ScoreOptions) -> Mapping[str, Any]:
    """Write `scores.jsonl`, with a line per request that has an expected answer, and `score-summary.json`.

    A request without an answer counts as wrong. Requests without an expected answer have a count of their own.
    Return the totals.
    """
    tasks: dict[str, dict[str, int]] = {}
    unscored = 0
    with results.create() as scores:
        for row in results.rows():
            correct = is_correct(row.body, row.text, options.method)
            if correct is None:
                unscored += 1
                continue
            task = str(row.body["metadata"].get("task", "all"))
            error = "no answer" if row.text is None else None
            counts = tasks.setdefault(task, {"total": 0, "correct": 0})
            counts["total"] += 1
            counts["correct"] += correct
            entry = {
                "line": row.line,
                "custom_id": row.custom_id,
                "task": task,
                "correct": correct,
                "expected": _expected(row.body),
                "answer": row.text,
            }
            scores.write(json_lines.line(entry | ({"error": error} if error else {})))
    total = sum(counts["total"] for counts in tasks.values())
    correct_total = sum(counts["correct"] for counts in tasks.values())
    totals = {
        "total": total,
        "correct": correct_total,
        "accuracy": correct_total / total if total else None,
        "without_expected": unscored,
    }
    summary = {
        "method": options.method,
        **totals,
        "tasks": {
            task: {**counts, "accuracy": counts["correct"] / counts["total"]} for task, counts in sorted(tasks.items())
        },
    }
    with results.create() as file:
        file.write(json.dumps(summary, indent=2, ensure_ascii=False).encode() + b"\n")
    results.add(score_lines.NAME, scores.sha256, scores.size, total)
    results.add("score-summary.json", file.sha256, file.size)
    return totals


STEP = Step(
    "score",
    "compares each answer with body.metadata.expected, by body.metadata.task if that is given.",
    ScoreOptions,
    score,
    refusal,
)
