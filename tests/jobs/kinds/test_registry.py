"""Each kind of recipe: who may make a job of it, what its items are, and what nobody can do with them."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.errors import ConflictError, PermissionDeniedError, RequestError
from jobs import item_replies
from jobs.catalogue import catalogue_of
from jobs.kinds import registry
from jobs.kinds.composite import CompositeKind
from jobs.kinds.flow import FLOW
from jobs.submission import again, creation
from jobs.submission.creation import JobRequest
from jobs.tune.kind import TuneKind
from store.keys import Principal
from store.records import Job
from tasks.context import AppContext
from tests.support.jobs import create_job

EXPERIMENT: dict[str, Any] = {
    "recipe": "batch",
    "variants": {"one": {"model": "echo"}, "two": {"model": "echo", "system": "Be brief."}},
}


def job(recipe: str) -> Job:
    return Job(id="job_1", recipe=recipe, options={}, models={})


def test_every_recipe_has_a_kind_and_one_that_is_gone_counts_as_of_rows(context: AppContext) -> None:
    kinds = {name: type(registry.kind_of(recipe)) for name, recipe in catalogue_of(context).recipes.items()}
    assert kinds.pop("experiment") is kinds.pop("generate") is kinds.pop("cascade") is CompositeKind
    assert kinds.pop("tune") is TuneKind
    assert set(kinds.values()) == {type(FLOW)}
    assert registry.kind_of_job(context, job("gone")) is FLOW
    assert (FLOW.children(context, job("gone")), FLOW.expected(context, job("gone"))) == ([], {})


@pytest.mark.parametrize("recipe", ["experiment", "tune"])
def test_items_that_are_jobs_take_no_replies_and_no_retry(context: AppContext, project: str, recipe: str) -> None:
    with context.database.write() as session:
        made = create_job(session, project, recipe=recipe, total=3)
    with pytest.raises(ConflictError, match=f"Item 3 of job '{made.id}' is a job itself"):
        item_replies.put_back(context, Principal(project, admin=True, key_id="key_1", name="ours"), made.id, 3, None)
    for again_ in (again.retry, lambda *job: again.rescore(*job, {})):
        with pytest.raises(ConflictError, match="create it again"):
            again_(context, project, made.id)


def test_a_job_of_jobs_takes_no_answers(context: AppContext, project: str) -> None:
    request = JobRequest("experiment", [{"prompt": "a"}], options=EXPERIMENT, answers_from="job_1")
    with pytest.raises(RequestError, match="has no rows of its own, so it takes no answers_from") as refused:
        creation.draft(context, project, request)
    assert refused.value.param == "answers_from"


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
