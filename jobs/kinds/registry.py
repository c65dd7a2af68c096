"""The kind of each recipe."""

from collections.abc import Mapping
from typing import Any

from batchyard.plugins import Registry
from batchyard.recipes import Recipe
from jobs.catalogue import catalogue_of
from jobs.intake.drafts import Configuration
from jobs.kinds.flow import FLOW
from jobs.kinds.kind import ChildRow, RecipeKind
from store.records import Job
from tasks.context import AppContext
from tasks.intake import submission


def _checked(value: Any) -> tuple[str, RecipeKind[Any]]:
    if not isinstance(value, RecipeKind):
        raise TypeError("is no jobs.kinds.kind.RecipeKind")
    return value.name, value


KINDS: Registry[RecipeKind[Any]] = Registry(
    "kind of recipe",
    "batchyard.kinds",
    {
        "flow": "jobs.kinds.flow:FLOW",
        "composite": "jobs.kinds.composite:COMPOSITE",
        "tune": "jobs.tune.kind:TUNE",
    },
    _checked,
)


def kind_of(recipe: Recipe[Any]) -> RecipeKind[Any]:
    """Return the kind of a recipe. Raises ConfigurationError if its package does not bring it."""
    return KINDS.get(recipe.kind)


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
    return kind_of(recipe).check(context, recipe, values, completion_window, admin=admin)


def children(context: AppContext, job: Job) -> list[ChildRow]:
    recipe = catalogue_of(context).recipes.get(job.recipe)
    return [] if recipe is None else kind_of(recipe).children(context, recipe, job)


def expected(context: AppContext, job: Job) -> dict[int, int | None]:
    recipe = catalogue_of(context).recipes.get(job.recipe)
    return {} if recipe is None else kind_of(recipe).expected(context, recipe, job)
