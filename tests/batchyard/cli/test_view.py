"""How batches look in a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.cli import view

OURS = {
    "name": "sums",
    "simulated": False,
    "held": None,
    "priority": "normal",
    "live_shares": {},
    "expired": 0,
    "cancelled": 0,
    "cost": None,
    "rows_per_second": None,
    "tokens_per_second": None,
    "eta_seconds": None,
    "sla": "on_track",
    "due_at": 2_000_000_000,
    "artifacts": [],
    "post_process": [],
}
BATCH = {
    "id": "batch_1",
    "object": "batch",
    "model": "mini",
    "errors": None,
    "request_counts": {"total": 100, "completed": 90, "failed": 10},
    "usage": {"input_tokens": 900, "output_tokens": 1800},
    "created_at": 1_000,
    "in_progress_at": 1_000,
    "finalizing_at": 1_090,
    "cancelling_at": None,
    "expired_at": None,
    "failed_at": None,
    "expires_at": 2_000_000_000,
    "output_file_id": None,
    "error_file_id": None,
}


def facts(status: str, **changes: Any) -> dict[str, str]:
    batch = BATCH | {"status": status, **changes, "batchyard": OURS | changes.pop("ours", {})}
    return {line[:21].strip(): line[21:].strip() for line in view.facts(batch).splitlines()}


@pytest.mark.parametrize(
    ("status", "sla", "outlook"),
    [
        ("in_progress", "on_track", "on track, due in "),
        ("in_progress", "at_risk", "at risk, due in "),
        ("completed", "on_track", "in time, was due "),
        ("completed", "late", "late, was due "),
        ("failed", "on_track", "was due "),
        ("failed", "late", "late, was due "),
        ("cancelled", "at_risk", "was due "),
        ("expired", "late", "late, was due "),
    ],
)
def test_no_ended_batch_is_on_track(status: str, sla: str, outlook: str) -> None:
    assert facts(status, ours={"sla": sla})["sla"].startswith(outlook)


def test_a_scored_batch_says_how_much_was_right_and_one_without_expected_answers_does_not() -> None:
    totals = {"total": 1_200, "correct": 1_117, "accuracy": 1_117 / 1_200, "without_expected": 3}
    scored = facts("completed", ours={"post_process": [{"step": "parquet"}, {"step": "score", "summary": totals}]})
    assert scored["right"] == "1,117 of 1,200 (93.1 %)"
    nearly = {"total": 100_000, "correct": 99_999, "accuracy": 0.99999}
    assert facts("completed", ours={"post_process": [{"step": "score", "summary": nearly}]})["right"].endswith(
        "(99.9 %)"
    )
    nothing = {"total": 0, "correct": 0, "accuracy": None, "without_expected": 3}
    for step in ({"step": "score", "summary": nothing}, {"step": "score", "status": "failed"}, {"step": "score"}):
        assert "right" not in facts("completed", ours={"post_process": [step]})


def test_a_completed_batch_has_its_average_speed() -> None:
    assert facts("completed")["rows/s, tokens/s"] == "1.1, 20.0 on average"
    table = view.overview([BATCH | {"status": "completed", "batchyard": OURS}]).splitlines()[1].split()
    assert "1.1" in table


def test_a_batch_that_was_too_short_or_never_ran_has_no_speed() -> None:
    assert facts("completed", finalizing_at=1_003)["rows/s, tokens/s"] == "-"
    assert facts("failed", in_progress_at=None, finalizing_at=None, failed_at=1_100)["rows/s, tokens/s"] == "-"


def test_a_running_batch_has_the_speed_of_the_last_minute() -> None:
    ours = {"rows_per_second": 3.25, "tokens_per_second": 40.0}
    assert facts("in_progress", ours=ours)["rows/s, tokens/s"] == "3.2, 40.0"


def test_answers_with_flaws_are_said_beside_the_counts() -> None:
    assert "of the answers" not in facts("completed")
    said = "90 cut off at their limit of tokens, 1 empty, 2 not in the form that was asked for"
    flaws = {"cut_off": 90, "empty": 1, "invalid": 2}
    flawed = OURS | flaws
    assert facts("completed", ours=flaws)["of the answers"] == said
    assert said in view.brief(BATCH | {"status": "completed", "batchyard": flawed})
