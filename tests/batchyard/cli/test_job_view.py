"""How metrics of jobs look in a terminal."""

from __future__ import annotations

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
