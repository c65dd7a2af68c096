"""The registry of steps: the built-in ones, those of packages, and their options."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any
from unittest import mock

import pytest
from pydantic import ValidationError

from batchyard.errors import ConfigurationError
from store.artifacts import Artifacts
from tasks.steps import registry
from tasks.steps.score import STEP as SCORE  # noqa: F401  an entry point of a test
from tasks.steps.step import Step, StepOptions
from tests.support.step_results import BatchResults


class WordsOptions(StepOptions):
    """No options of its own."""


BARE = Step("bare", "has no options.", dict, print)  # type: ignore[type-var, arg-type]


def test_a_step_that_is_not_installed_checks_nothing() -> None:
    assert registry.checks([{"step": "gone"}]) == []


def test_every_built_in_step_says_its_name() -> None:
    assert {name: registry.STEPS.get(name).name for name in registry.BUILT_IN} == {
        "export": "export",
        "parquet": "parquet",
        "score": "score",
        "verify": "verify",
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("BatchResults", "is no tasks.steps.step.Step"),
        ("BARE", "has options that are no subclass"),
        ("SCORE", "calls itself"),
    ],
)
def test_an_entry_point_of_no_usable_step_is_refused(name: str, says: str) -> None:
    entry = EntryPoint("mine", f"{__name__}:{name}", "batchyard.steps")
    with (
        mock.patch.dict(registry.STEPS.added, {"mine": entry}),
        pytest.raises(ConfigurationError, match=rf"entry point 'mine = .*{says}.* uninstall"),
    ):
        registry.STEPS.get("mine")


def test_an_unknown_option_is_refused(artifacts: Artifacts) -> None:
    with pytest.raises(ValidationError, match="metod"):
        registry.run({"step": "score", "metod": "exact"}, BatchResults(artifacts, []))


@pytest.mark.parametrize(
    ("summary", "outcome"),
    [
        (None, {"status": "completed"}),
        ({}, {"status": "completed"}),
        ({"words": 3, "share": float("nan")}, {"status": "completed", "summary": {"words": 3, "share": None}}),
    ],
)
def test_what_a_step_returns_is_its_summary(
    summary: dict[str, Any] | None, outcome: dict[str, Any], artifacts: Artifacts
) -> None:
    assert run_step_that_returns(summary, artifacts) == outcome


def test_a_summary_that_no_record_can_hold_fails_its_step(artifacts: Artifacts) -> None:
    with pytest.raises(ValueError, match=r"has 4,1\d\d bytes, at most 4,096 are kept"):
        run_step_that_returns({"words": "x" * 4096}, artifacts)
    with pytest.raises(TypeError):
        run_step_that_returns({"words": {1, 2}}, artifacts)


def run_step_that_returns(summary: dict[str, Any] | None, artifacts: Artifacts) -> dict[str, Any]:
    step = Step("words", "counts words.", WordsOptions, lambda _results, _options: summary)
    with mock.patch.object(registry.STEPS, "get", return_value=step):
        return registry.run({"step": "words"}, BatchResults(artifacts, []))
