"""Commands whose options are a recipe's, and groups that have such a command for every recipe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import NoSuchCommand

from batchyard.cli.options import data_option
from batchyard.cli.recipes import catalogue, flags
from batchyard.errors import BatchyardError

if TYPE_CHECKING:
    from batchyard.config import Layer, Schema, Setting

BUILT_IN = {
    "batch": "Answer each row once, as one flat batch.",
    "cascade": "Answer rows with a small model where it agrees with a large one, with a guarantee.",
    "cascade-round": "Make one round of `cascade`: the small model answers all rows, or the large one answers some.",
    "evaluate": "Ask questions whose right answers are known, and score what is answered.",
    "experiment": "Run variants of a recipe's options over one input, and compare them.",
    "generate": "Make synthetic data: drafts of seeds, filtered, without near-duplicates, until there are enough.",
    "generate-round": "Make one round of `generate`: drafts of each seed, filtered, answered and rated.",
    "rollout": "Ask for n answers to each prompt and score them.",
    "panel": "Let agents propose, criticise and revise, and rank what they propose.",
    "rank": "Rank the passages of each row by their similarity to its prompt, with an embedding model.",
    "refine": "Check and review answers, and try again on higher tiers until they are accepted.",
    "tune": "Find the best configuration of a model for an input, by measuring some.",
}
"""What `--help` says of the recipes that are always there."""
_HELP = {"-h", "--help"}


class RecipeCommand(click.Command):
    """A command whose options are a recipe's. They are fetched as it parses its arguments.

    Its callback gets `recipe`, the object of GET /v1/recipes, and `settings`, the options in force with their origins.

    Args:
        complete: options without a default have to be set.
        recipe: its name if the command has another.
    """

    def __init__(
        self, name: str, callback: Callable[..., None], *, complete: bool = True, recipe: str | None = None
    ) -> None:
        self._what = inspect.getdoc(callback)
        self._recipe_name = recipe or name
        super().__init__(name, callback=callback, help=self._what, short_help=BUILT_IN.get(name))
        self._params: list[click.Parameter] = getattr(callback, "__click_params__", [])[::-1]  # as click's decorators
        self._complete = complete

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            recipe = self._recipe(ctx, args)
        except (BatchyardError, NoSuchCommand):
            if not ctx.resilient_parsing:
                raise
            self.params = self._params
        else:
            schema = ctx.meta[__name__] = self.schema(recipe)
            ctx.params["recipe"] = recipe
            arguments = [parameter for parameter in self._params if isinstance(parameter, click.Argument)]
            rest = [parameter for parameter in self._params if parameter not in arguments]
            self.params = [*arguments, *flags.options(schema, self._params), *rest]
            self.help = f"{recipe['summary']}\n\n{self._what}"
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        from batchyard import config

        schema = ctx.meta[__name__]
        values = {name: ctx.params.pop(name) for name in list(ctx.params) if name.startswith(flags.PREFIX)}
        files = self.files(schema, ctx.params)
        layers = [*files, *flags.layers(schema, values, ctx.params.pop("overrides"))]
        ctx.params["settings"] = self.settled(config.resolve(schema, layers, complete=self._complete), ctx.params)
        return super().invoke(ctx)

    def schema(self, recipe: Mapping[str, Any]) -> Schema:
        """Return the schema of what files and flags may set."""
        from batchyard.config import Schema

        return Schema(recipe["options"])

    def settled(self, settings: list[Setting], params: dict[str, Any]) -> list[Setting]:
        """Return the options in force. A subclass may take some out, and set parameters by them."""
        return settings

    def files(self, schema: Schema, params: dict[str, Any]) -> list[Layer]:
        """Take the files out of the command's parameters, and return their layers."""
        from batchyard import config

        return [layer for file in params.pop("files") for layer in config.files(schema, file)]

    def _recipe(self, ctx: click.Context, args: Sequence[str]) -> dict[str, Any]:
        """Return the recipe of this name, from the server that the command will use."""
        name = self._recipe_name
        look_up = catalogue.glance if ctx.resilient_parsing or not _HELP.isdisjoint(args) else catalogue.recipes
        # The arguments are not parsed yet, and `--data` among them names the recipe's server.
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        command = data_option(click.Command("data", add_help_option=False, context_settings=settings))
        data: Path | None = command.make_context("data", list(args), resilient_parsing=True).params["data"]
        try:
            recipes = {recipe["name"]: recipe for recipe in look_up(data)}
        except BatchyardError as error:
            if name not in BUILT_IN:
                error.message = f"{name} is no command, and whether it is a recipe is not known: {error.message}"
            raise
        if name not in recipes:
            group = ctx.parent.command if ctx.parent else None
            commands = group.commands if isinstance(group, click.Group) else {}
            raise NoSuchCommand(name, possibilities=[*commands, *recipes], ctx=ctx.parent)
        return recipes[name]


def path_of(setting: Setting) -> Path:
    """Return the path that a setting names, relative to the file that it stands in."""
    folder = Path(setting.origin.name).parent if setting.origin.kind == "file" else Path()
    return folder / str(setting.value)


class RecipeGroup(click.Group):
    """A group with a command for every recipe, beside its own commands.

    `recipe_command`: makes the command of a recipe by its name.
    """

    def __init__(self, *args: Any, recipe_command: Callable[[str], RecipeCommand], **options: Any) -> None:
        super().__init__(*args, **options)
        self._recipe_command = recipe_command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *BUILT_IN})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command of the group's own, else that of a recipe, which is looked up later."""
        command = super().get_command(ctx, name)
        if command is None and name[:1].isalpha():
            return self._recipe_command(name)
        return command
