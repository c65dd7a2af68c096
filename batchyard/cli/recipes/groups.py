"""Which command a recipe has, and the groups with a command for every recipe."""

from __future__ import annotations

from batchyard.cli import job_view
from batchyard.cli.recipes import commands, experiment, tune
from batchyard.cli.recipes.group import RecipeCommand, RecipeGroup


def one_shot(name: str) -> RecipeCommand:
    """Return the command that runs a recipe from the first row to the last artifact: `batchyard rollout`."""
    if name == job_view.EXPERIMENT:
        return experiment.run
    if name == job_view.TUNE:
        return tune.run
    return RecipeCommand(name, commands.answer, commands.parameters(commands.answer), complete=True)


def _create(name: str) -> RecipeCommand:
    if name == job_view.EXPERIMENT:
        return experiment.create
    return RecipeCommand(name, commands.create, commands.parameters(commands.create), complete=True)


def _config(name: str) -> RecipeCommand:
    if name == job_view.EXPERIMENT:
        return experiment.config_command
    return RecipeCommand(name, commands.show, commands.parameters(commands.show), complete=False)


create = RecipeGroup("create", recipe_command=_create, help="Make a job on a server that runs.")
config = RecipeGroup("config", recipe_command=_config, help="A recipe's options with their origins.")
