"""How metrics of jobs look in a terminal."""

from __future__ import annotations

import pytest

from batchyard.cli import job_view


def test_metrics_have_their_interval_and_the_number_that_they_are_of() -> None:
    of_source = {"prompts": 3, "mean@4": 0.5, "intervals": {}}
    metrics = {
        "prompts": 40,
        "mean@4": 0.123456,
        "pass@1": None,
        "intervals": {"mean@4": [0.1, 0.15]},
        "consensus": {"mean": 0.25, "n": 8},
        "data_sources": {"a": of_source},
    }
    shown = job_view.metrics({"batchyard": {"metrics": metrics}})
    assert [line.split() for line in shown.splitlines()] == [
        ["metric", "value", "n"],
        ["prompts", "40", "-"],
        ["mean@4", "0.1235", "(0.1", "to", "0.15)", "40"],
        ["pass@1", "-", "-"],
        ["consensus", "0.25", "8"],
        ["data_sources", "a", "prompts", "3", "-"],
        ["data_sources", "a", "mean@4", "0.5", "3"],
    ]
    assert "data_sources" not in job_view.metrics({"batchyard": {"metrics": metrics}}, whole=False)
    assert job_view.metrics({"batchyard": {"metrics": None}}) == ""


def test_children_are_listed_oldest_first_with_how_many_earlier_jobs_were_taken() -> None:
    counts = {"total": 4, "completed": 1, "failed": 1, "stuck": 0, "expired": 0, "cancelled": 0}
    ours = {"child_key": "small/0/0", "eta_seconds": None, "sla": "on_track"}
    child = {"id": "job_1", "status": "in_progress", "request_counts": counts, "batchyard": ours}
    later = child | {"id": "job_2", "batchyard": ours | {"child_key": "big/0/0"}}
    shown = job_view.children({"batchyard": {"counters": {"taken": 2}}}, [later, child])
    lines = [line.split() for line in shown.splitlines()]
    assert [line[0] for line in lines] == ["child", "small/0/0", "big/0/0", "taken"]
    assert "1/1/0/4" in lines[1] and lines[1][-1] == "job_1"
    assert lines[3][-1] == "2"
    assert job_view.children({"batchyard": {"counters": {}}}, []) == ""


def test_a_job_whose_input_was_refused_has_no_completed_items() -> None:
    counts = {"total": 0, "completed": 0, "failed": 0, "stuck": 0}
    job = {"id": "job_1", "recipe": "refine", "request_counts": counts}
    job["batchyard"] = {"metrics": None, "simulated": False, "warnings": []}
    assert job_view.summary(job) == "No items ran: job_1"


def test_the_summary_says_what_the_report_warns_of_before_how_the_items_ended() -> None:
    counts = {"total": 3, "completed": 2, "failed": 0, "stuck": 1}
    ours = {"metrics": {"accepted": 2}, "simulated": False, "warnings": [{"code": "c", "message": "Look at it."}]}
    job = {"id": "job_1", "recipe": "refine", "request_counts": counts, "batchyard": ours}
    assert job_view.summary(job).splitlines()[-2:] == [
        "Warning: Look at it.",
        "2 of 3 items completed, 1 stuck: job_1",
    ]


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((90.0, None, None), "done in  1 min 30 s"),
        ((None, 90.0, 600.0), "done in  1 min 30 s to 10 min"),
        ((None, 90.0, None), "done in  1 min 30 s or more"),
        ((None, None, None), "done in  -"),
    ],
)
def test_a_dry_run_says_between_which_times_a_job_would_end(ends: tuple[float | None, ...], words: str) -> None:
    names = ("eta_seconds", "eta_earliest_seconds", "eta_latest_seconds")
    stages = [
        {"name": "answer", "expected": None, "least": 40, "most": 160},
        {"name": "vote", "expected": 7, "least": 7, "most": 7},
    ]
    plan = dict(zip(names, ends, strict=True)) | {"items": 40, "stages": stages, "same_as": None, "warnings": []}
    lines = [" ".join(line.split()) for line in job_view.outlook(plan).splitlines()]
    assert "requests, answer 40 to 160" in lines and "requests, vote 7" in lines
    assert " ".join(words.split()) in lines
