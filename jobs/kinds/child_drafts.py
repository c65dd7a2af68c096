"""Jobs that other jobs start: all of them answer rows."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchyard.errors import RequestError
from batchyard.recipes import Child, FlowRecipe, Recipe
from jobs.catalogue import catalogue_of
from jobs.intake import drafts
from jobs.intake.drafts import Configuration, JobDraft
from jobs.kinds.flow import FLOW
from store.records import Job
from store.work import traces
from tasks.context import AppContext

_OF_PARENT = ("project_id", "completion_window", "output_expires_after", "expires_at", "due_at")


class ChildInput(NamedTuple):
    file_id: str | None
    sha256: str
    name: str


def check(context: AppContext, recipe_name: str, values: Mapping[str, Any], completion_window: str) -> Configuration:
    """Return what a child runs. Raises RequestError."""
    return FLOW.check(context, flow_recipe(catalogue_of(context).recipe(recipe_name)), values, completion_window)


def flow_recipe(recipe: Recipe[Any]) -> FlowRecipe[Any]:
    """Return the recipe of a child. Raises RequestError for jobs of jobs."""
    if not isinstance(recipe, FlowRecipe):
        message = f"Recipe '{recipe.name}' starts jobs itself, so it cannot be that of a child."
        raise RequestError(message, code="invalid_value", param="options.recipe")
    return recipe


def draft(context: AppContext, parent: Job, child: Child, source: ChildInput) -> JobDraft:
    """Prepare a job that another one starts, within that one's window. Raises RequestError."""
    configuration = check(context, child.recipe, child.options, parent.completion_window)
    job = Job(
        **{name: getattr(parent, name) for name in _OF_PARENT},
        name=child.key,
        seed=parent.seed + child.repeat,
        input_file_id=source.file_id,
        input_sha256=source.sha256,
        input_name=source.name,
        post_process=[],
        parent_id=parent.id,
        traceparent=str(traces.place(parent)) if parent.id else None,  # a dry run has no job
        child_key=child.key,
        variant=child.variant,
    )
    return drafts.configured(context, job, None, configuration)
