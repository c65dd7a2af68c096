"""Each kind of recipe: who may make a job of it, what its items are, and what nobody can do with them."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.errors import ConflictError, PermissionDeniedError, RequestError
from jobs.catalogue import catalogue_of
from jobs.kinds import registry
from jobs.kinds.composite import CompositeKind
from jobs.kinds.flow import FLOW
from jobs.tune.kind import TuneKind
from store.records import Job
from tasks.context import AppContext

EXPERIMENT: dict[str, Any] = {
    "recipe": "batch",
    "variants": {"one": {"model": "echo"}, "two": {"model": "echo", "n": 1}},
}


def job(recipe: str) -> Job:
    return Job(id="job_1", recipe=recipe, options={}, models={})


def test_every_recipe_has_a_kind_and_one_that_is_gone_counts_as_of_rows(context: AppContext) -> None:
    kinds = {name: type(registry.kind_of(recipe)) for name, recipe in catalogue_of(context).recipes.items()}
    assert kinds.pop("experiment") is kinds.pop("generate") is kinds.pop("cascade") is CompositeKind
    assert kinds.pop("tune") is TuneKind
    assert set(kinds.values()) == {type(FLOW)}
    assert registry.kind_of_job(context, job("gone")) is FLOW
    assert registry.children(context, job("gone")) == []


@pytest.mark.parametrize("recipe", ["experiment", "tune"])
def test_items_that_are_jobs_take_no_replies_no_answers_and_no_retry(context: AppContext, recipe: str) -> None:
    kind = registry.kind_of_job(context, job(recipe))
    assert not kind.has_journal
    with pytest.raises(ConflictError, match="Item 3 of job 'job_1' is a job itself"):
        kind.check_repliable(job(recipe), 3)
    with pytest.raises(ConflictError, match="create it again"):
        kind.check_repeatable(job(recipe))
    with pytest.raises(RequestError, match="takes no answers"):
        kind.check_answers_from(catalogue_of(context).recipe(recipe))


def test_items_that_are_rows_take_all_of_them(context: AppContext) -> None:
    FLOW.check_repliable(job("batch"), 3)
    FLOW.check_repeatable(job("batch"))
    FLOW.check_answers_from(catalogue_of(context).recipe("batch"))  # type: ignore[arg-type]  # it is one of rows
    assert FLOW.has_journal


def test_only_administrators_make_jobs_that_start_engines(context: AppContext) -> None:
    with pytest.raises(PermissionDeniedError, match="needs an admin key"):
        registry.check(context, "tune", {"models": ["echo"]}, "24h")
    configuration = registry.check(context, "tune", {"models": ["echo"]}, "24h", admin=True)
    assert (list(configuration.models), list(configuration.stages)) == (["echo"], [])


def test_a_composite_of_composites_is_refused_as_a_whole(context: AppContext) -> None:
    with pytest.raises(RequestError, match=r"^Recipe 'tune' starts jobs itself") as refused:
        registry.check(context, "experiment", {"recipe": "tune", "variants": {"one": {}}}, "24h")
    assert refused.value.param == "options.recipe"


def test_a_window_that_nobody_offers_is_refused_before_anything_else(context: AppContext) -> None:
    with pytest.raises(RequestError) as refused:
        registry.check(context, "no such recipe", {}, "1s")
    assert refused.value.param == "completion_window"
