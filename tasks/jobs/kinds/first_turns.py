"""The first turns of a preview's items: what a recipe asks first, within seconds.

A web server's thread cannot interrupt a recipe, so those that the deployment has added run in a process beside it,
which is killed when one takes too long. The built-in ones are quick.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

from batchyard.errors import RequestError
from batchyard.recipes import FlowRecipe
from batchyard.settings import Settings
from recipes import registry
from recipes.processes import KillablePool
from store.records import Job
from tasks.context import AppContext
from tasks.intake.validation import ValidationReport
from tasks.jobs.intake.requests import PreparedRequest
from tasks.jobs.intake.rows import Columns, RowError
from tasks.jobs.kinds.item_checks import ItemChecker

SECONDS = 5.0
"""Longest that the first turns of a preview may take."""


FirstTurns: TypeAlias = tuple[list[list[PreparedRequest]], list[dict[str, Any]]]
"""The requests of each item's first turn, and what is wrong with rows, as in `errors.data` of a job."""


def of(context: AppContext, recipe: FlowRecipe[Any], job: Job, sample: Sequence[Columns | RowError]) -> FirstTurns:
    """Return the first turns of a job's first rows.

    Raises:
        RequestError: the recipe took longer than SECONDS, or ended its process.
    """
    if recipe.name in registry.RECIPES.built_in:
        return _checked(context.settings, recipe, job, sample)
    future = pool(context.settings).submit(_in_process, context.settings, recipe.name, job, sample)
    try:
        first: FirstTurns = future.result()
    except Exception as error:
        place, reason = context.recipes.place(recipe), pool(context.settings).reason(error)
        message = (
            f"The first turn of recipe {recipe.name!r} ({place}) failed: {reason}. A turn only says what to ask next; "
            "its author has to take out of it what waits or does not end."
        )
        raise RequestError(message, code="recipe_hangs", param="recipe") from error
    return first


def _checked(settings: Settings, recipe: FlowRecipe[Any], job: Job, sample: Sequence[Columns | RowError]) -> FirstTurns:
    report = ValidationReport()
    checker = ItemChecker(settings, job, recipe, report)
    turns = []
    for number, row in enumerate(sample, 1):
        checker.checked(number, row, probed=True)
        turns.append(checker.first_turn)
    return turns, report.errors


def _in_process(settings: Settings, recipe: str, job: Job, sample: Sequence[Columns | RowError]) -> FirstTurns:
    flow: Any = registry.catalogue(settings).recipe(recipe)
    return _checked(settings, flow, job, sample)


_starting = threading.Lock()
pools: dict[str, KillablePool] = {}
"""The processes of this one, by the folder of recipes: a deployment has one."""


def pool(settings: Settings) -> KillablePool:
    """Return the processes that run the recipes of a deployment."""
    with _starting:
        if settings.recipes not in pools:
            pools[settings.recipes] = KillablePool(1, SECONDS, functools.partial(registry.catalogue, settings))
        return pools[settings.recipes]
