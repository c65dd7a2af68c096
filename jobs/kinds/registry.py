"""The kind of each recipe."""

import pkgutil
from collections.abc import Mapping
from typing import Any

from batchyard.recipes import Recipe
from jobs.catalogue import catalogue_of
from jobs.intake.drafts import Configuration, Submission
from jobs.kinds.flow import FLOW
from jobs.kinds.kind import RecipeKind
from store.records import Job
from tasks.context import AppContext
from tasks.intake import submission

_KINDS = {
    "flow": "jobs.kinds.flow:FLOW",
    "composite": "jobs.kinds.composite:COMPOSITE",
    "tune": "jobs.tune.kind:TUNE",  # a plug-in, imported when it is needed
}


def kind_of(recipe: Recipe[Any]) -> RecipeKind[Any]:
    kind: RecipeKind[Any] = pkgutil.resolve_name(_KINDS[recipe.kind])
    return kind


def kind_of_job(context: AppContext, job: Job) -> RecipeKind[Any]:
    """Return the kind of a job's recipe, by default rows."""
    recipe = catalogue_of(context).recipes.get(job.recipe)
    return FLOW if recipe is None else kind_of(recipe)


def check(
    context: AppContext, recipe_name: str, values: Mapping[str, Any], completion_window: str, *, admin: bool = False
) -> Configuration:
    """Return what a job of this recipe with these options runs. Raises as `RecipeKind.check`."""
    submission.check_window(context.settings, completion_window)
    recipe = catalogue_of(context).recipe(recipe_name)
    return kind_of(recipe).check(context, recipe, Submission(values, completion_window, admin))
