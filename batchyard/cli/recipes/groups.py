"""Which command a recipe has, and the groups with a command for every recipe."""

from __future__ import annotations

from collections.abc import Callable

from batchyard.cli.recipes import commands, experiment, tune
from batchyard.cli.recipes.group import RecipeCommand, RecipeGroup

_ONE_SHOTS = {command.name: command for command in (experiment.run, tune.run)}
_CREATES = {experiment.create.name: experiment.create}
_CONFIGS = {experiment.config_command.name: experiment.config_command}


def one_shot(name: str) -> RecipeCommand:
    """Return the command that runs a recipe from the first row to the last artifact: `batchyard rollout`."""
    return _ONE_SHOTS.get(name) or _command(name, commands.answer)


def _command(name: str, callback: Callable[..., None], complete: bool = True) -> RecipeCommand:
    return RecipeCommand(name, callback, commands.parameters(callback), complete)


def _create(name: str) -> RecipeCommand:
    return _CREATES.get(name) or _command(name, commands.create)


def _config(name: str) -> RecipeCommand:
    return _CONFIGS.get(name) or _command(name, commands.show, complete=False)


create = RecipeGroup("create", recipe_command=_create, help="Make a job on a server that runs.")
config = RecipeGroup("config", recipe_command=_config, help="A recipe's options with their origins.")
