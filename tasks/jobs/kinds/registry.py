"""The kind of each recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchyard.recipes import CompositeRecipe, FlowRecipe, Recipe
from recipes.tune.recipe import TuneRecipe
from store.records import Job
from tasks.context import AppContext
from tasks.intake import submission
from tasks.jobs.intake.drafts import Configuration
from tasks.jobs.kinds.composite import CompositeKind
from tasks.jobs.kinds.flow import FLOW
from tasks.jobs.kinds.kind import ChildRow, RecipeKind
from tasks.jobs.kinds.tune import TuneKind

KINDS: Mapping[type[Recipe[Any]], RecipeKind[Any]] = {
    FlowRecipe: FLOW,
    CompositeRecipe: CompositeKind(),
    TuneRecipe: TuneKind(),
}


def kind_of(recipe: Recipe[Any]) -> RecipeKind[Any]:
    """Return the kind of a recipe."""
    return KINDS[type(recipe)]


def kind_of_job(context: AppContext, job: Job) -> RecipeKind[Any]:
    """Return the kind of a job's recipe; that of rows if the recipe is gone."""
    recipe = context.recipes.recipes.get(job.recipe)
    return FLOW if recipe is None else kind_of(recipe)


def check(
    context: AppContext, recipe_name: str, values: Mapping[str, Any], completion_window: str, *, admin: bool = False
) -> Configuration:
    """Return what a job of this recipe with these options runs. Raises as `JobKind.check`."""
    submission.check_window(context.settings, completion_window)
    recipe = context.recipes.recipe(recipe_name)
    return kind_of(recipe).check(context, recipe, values, completion_window, admin=admin)


def children(context: AppContext, job: Job) -> list[ChildRow]:
    """Return the jobs that a job has started and those known that it will start."""
    recipe = context.recipes.recipes.get(job.recipe)
    return [] if recipe is None else kind_of(recipe).children(context, recipe, job)


def expected(context: AppContext, job: Job) -> dict[int, int | None]:
    """Return the requests of each stage of a job, by number, as far as its recipe says."""
    recipe = context.recipes.recipes.get(job.recipe)
    return {} if recipe is None else kind_of(recipe).expected(context, recipe, job)
