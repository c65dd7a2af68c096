"""What makes a job another job, and what makes its requests others."""

from __future__ import annotations

from typing import Any

from batchyard.recipes import Judgement, Options
from jobs.intake import identity
from store.records import Job


class Judged(Options):
    n: int = 3
    reward: Judgement[str | None] = None


def hashes(**changes: Any) -> dict[str, str]:
    columns: dict[str, Any] = {
        "recipe": "rollout",
        "recipe_sha256": "a" * 64,
        "options": {"n": 3, "reward": "exact"},
        "seed": 7,
        "input_sha256": "b" * 64,
        "items_sha256": "c" * 64,
        "models": {"mini": {"engine": "vllm", "price": {"input": 1}}},
        "retry_of": None,
    }
    return identity.hashes(Judged, identity.configuration(Job(**columns | changes)))


def test_the_same_job_has_the_same_hashes_whatever_the_order_of_its_options() -> None:
    assert hashes() == hashes(options={"reward": "exact", "n": 3})


def test_what_its_requests_depend_on_makes_other_work() -> None:
    same = hashes()
    for changes in (
        {"options": {"n": 4, "reward": "exact"}},
        {"seed": 8},
        {"recipe_sha256": "d" * 64},
        {"input_sha256": "d" * 64},
        {"models": {"mini": {"engine": "echo"}}},
    ):
        other = hashes(**changes)
        assert other["work_sha256"] != same["work_sha256"] and other["config_sha256"] != same["config_sha256"], changes


def test_another_judgement_is_another_job_of_the_same_work() -> None:
    other = hashes(options={"n": 3, "reward": "numeric"})
    assert other["work_sha256"] == hashes()["work_sha256"]
    assert other["config_sha256"] != hashes()["config_sha256"]


def test_a_price_makes_no_other_job() -> None:
    assert hashes(models={"mini": {"engine": "vllm", "price": None}}) == hashes()


def test_only_the_items_of_a_retry_are_its_own() -> None:
    assert hashes(items_sha256="d" * 64) == hashes()
    assert hashes(items_sha256="d" * 64, retry_of="job_1") != hashes(retry_of="job_1")


def test_an_option_that_a_recipe_has_no_more_counts_as_one_that_asks() -> None:
    assert identity.working(Judged, {"gone": 1, "reward": "exact", "n": 3}) == {"gone": 1, "n": 3}
