"""Calls of authors' code in processes of their own, which are killed when a call takes too long.

No thread of a web server can be interrupted. The built-in recipes are quick and are called in the thread.
"""

import functools
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

from batchyard.errors import RequestError
from batchyard.recipes import Recipe
from batchyard.settings import Settings
from jobs.catalogue import catalogue_of
from recipes import registry
from recipes.processes import KillablePool, reason
from tasks.context import AppContext

SECONDS = 5.0
"""Longest that one call may take."""
PROCESSES = 2
"""A recipe that hangs delays no other."""


def call(
    context: AppContext, recipe: Recipe[Any], what: str, remedy: str, function: Callable[..., Any], *args: Any
) -> Any:
    """Return what `function` returns for the deployment's settings, the recipe and `args`.

    A process imports `function` from its module. `what` and `remedy` name the call, and what its author has to do.
    Raises RequestError: the function's own; or the call took longer than SECONDS, or ended its process.
    """
    is_built_in = recipe.name in registry.RECIPES.built_in
    if is_built_in or multiprocessing.current_process().daemon:  # which can have no process; Celery limits its time
        return function(context.settings, recipe, *args)
    processes = pool(context.settings)
    try:
        return processes.submit(_in_process, context.settings, recipe.name, function, *args).result()
    except RequestError:
        raise
    except Exception as error:
        message = (
            f"The {what} of recipe {recipe.name!r} ({catalogue_of(context).place(recipe)}) failed: "
            f"{reason(error)}. {remedy}"
        )
        raise RequestError(message, code="recipe_hangs", param="recipe") from error


def _in_process(settings: Settings, recipe: str, function: Callable[..., Any], *args: Any) -> Any:
    return function(settings, registry.catalogue(settings).recipe(recipe), *args)


_starting = threading.Lock()
pools: dict[str, KillablePool] = {}
"""The processes of this one, by the folder of recipes: a deployment has one."""


def pool(settings: Settings) -> KillablePool:
    with _starting:
        if settings.recipes not in pools:
            load = functools.partial(registry.catalogue, settings)
            pools[settings.recipes] = KillablePool(PROCESSES, SECONDS, load)
        return pools[settings.recipes]
