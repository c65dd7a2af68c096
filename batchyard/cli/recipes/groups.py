"""Which command a recipe has, and the groups with a command for every recipe."""

from collections.abc import Callable

from batchyard.cli.recipes import commands, experiment, tune
from batchyard.cli.recipes.group import RecipeCommand, RecipeGroup


def _maker(callback: Callable[..., None], *own: RecipeCommand, complete: bool = True) -> Callable[[str], RecipeCommand]:
    """Return what makes the command of a recipe by its name. `own`: commands of recipes that have one of their own."""
    by_name = {command.name: command for command in own}
    return lambda name: by_name.get(name) or RecipeCommand(name, callback, complete=complete)


one_shot = _maker(commands.answer, experiment.run, tune.run)
"""Returns the command that runs a recipe from the first row to the last artifact: `batchyard rollout`."""
create = RecipeGroup(
    "create",
    recipe_command=_maker(commands.create, experiment.create),
    help="Create a job on a running server.",
)
config = RecipeGroup(
    "config",
    recipe_command=_maker(commands.show, experiment.config_command, complete=False),
    help="Show the options of a recipe and their origins.",
)
